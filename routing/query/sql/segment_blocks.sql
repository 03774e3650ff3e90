-- Loads of every segment by block and layer, for arrays: the order is the arrays' own.
-- grain: segment, block, layer    reads: block_loads    parameters: none    units: routed_rows are (token, expert) pairs
SELECT routed_rows
FROM block_loads
ORDER BY segment_id, block, layer
