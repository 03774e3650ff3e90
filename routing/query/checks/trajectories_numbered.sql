-- Trajectory ids are 0, 1, 2, ..., each once, and every hash once: exact repeats are dropped when the corpus is read.
-- grain: trajectory    reads: trajectories    parameters: none    units: none
SELECT trajectory_id, copies_of_id, copies_of_hash
FROM (
    SELECT
        trajectory_id,
        COUNT(*) OVER (PARTITION BY trajectory_id) AS copies_of_id,
        COUNT(*) OVER (PARTITION BY trajectory_hash) AS copies_of_hash,
        COUNT(*) OVER () AS num_trajectories
    FROM trajectories
)
WHERE copies_of_id > 1 OR copies_of_hash > 1 OR trajectory_id NOT BETWEEN 0 AND num_trajectories - 1
ORDER BY trajectory_id
