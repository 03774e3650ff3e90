-- A (segment, layer, expert) is counted once. Exact repeats are dropped before this check, so what is left differs.
-- grain: segment, layer    reads: layer_loads    parameters: none    units: rows of loads
SELECT segment_id, layer, num_rows - num_strays AS num_rows, num_experts AS expected_num_rows
FROM layer_loads
WHERE num_rows - num_strays <> num_experts
ORDER BY segment_id, layer
