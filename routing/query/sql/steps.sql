-- Every step of every trajectory.
-- grain: trajectory, position    reads: paths, segments    parameters: none    units: num_tokens are the segment's tokens
SELECT
    paths.trajectory_id::BIGINT AS trajectory_id,
    paths.segment_id::BIGINT AS segment_id,
    segments.num_tokens::BIGINT AS num_tokens
FROM paths
JOIN segments USING (segment_id)
ORDER BY paths.trajectory_id, paths.position
