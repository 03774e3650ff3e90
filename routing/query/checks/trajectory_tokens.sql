-- A trajectory's tokens are those of its segments.
-- grain: trajectory    reads: trajectories, paths, segments    parameters: none    units: tokens
SELECT
    trajectories.trajectory_id,
    trajectories.num_tokens,
    COALESCE(SUM(segments.num_tokens), 0)::BIGINT AS expected_num_tokens
FROM trajectories
LEFT JOIN paths USING (trajectory_id)
LEFT JOIN segments USING (segment_id)
GROUP BY trajectories.trajectory_id, trajectories.num_tokens
HAVING trajectories.num_tokens <> expected_num_tokens OR expected_num_tokens = 0
ORDER BY trajectories.trajectory_id
