-- Rows of loads beyond the first of their segment, layer and expert.
-- grain: one row    reads: layer_loads    parameters: none    units: rows of loads
SELECT COALESCE(SUM(num_rows - num_strays - num_experts), 0)::BIGINT AS repeated_rows
FROM layer_loads
