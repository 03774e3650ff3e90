-- Loads with exact repeats dropped: a segment that two parts hold with the same rows counts once.
-- grain: segment, layer, expert, routed_rows    reads: stored_loads    parameters: none    units: routed_rows are (token, expert) pairs
SELECT DISTINCT segment_id, layer, expert, routed_rows
FROM stored_loads
