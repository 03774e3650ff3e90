-- What names a trajectory, and what it moves together with.
-- grain: trajectory    reads: trajectories    parameters: none    units: none
SELECT trajectory_hash, unit, stratum
FROM trajectories
ORDER BY trajectory_id
