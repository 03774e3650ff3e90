-- A path lists positions 0, 1, 2, ... of a known trajectory, each once, and each step's parent is the step before it.
-- grain: trajectory, position    reads: paths, segments, trajectories    parameters: none    units: none
SELECT trajectory_id, position, segment_id, parent_segment_id, expected_position, expected_parent_segment_id
FROM (
    SELECT
        paths.trajectory_id,
        paths.position,
        paths.segment_id,
        segments.segment_id AS known_segment_id,
        segments.parent_segment_id,
        trajectories.trajectory_id AS known_trajectory_id,
        ROW_NUMBER() OVER path - 1 AS expected_position,
        LAG(paths.segment_id) OVER path AS expected_parent_segment_id
    FROM paths
    LEFT JOIN segments USING (segment_id)
    LEFT JOIN trajectories USING (trajectory_id)
    WINDOW path AS (PARTITION BY paths.trajectory_id ORDER BY paths.position)
)
WHERE
    known_segment_id IS NULL
    OR known_trajectory_id IS NULL
    OR position <> expected_position
    OR parent_segment_id IS DISTINCT FROM expected_parent_segment_id
ORDER BY trajectory_id, position
