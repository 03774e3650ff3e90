-- Loads of a run that has none yet.
-- grain: segment, layer, expert (no row)    reads: nothing    parameters: none    units: routed_rows are (token, expert) pairs
SELECT NULL::INTEGER AS segment_id, NULL::INTEGER AS layer, NULL::INTEGER AS expert, NULL::INTEGER AS routed_rows
WHERE FALSE
