-- A token's experts are distinct: no expert gets more rows than its segment has tokens.
-- grain: segment, layer    reads: layer_loads, segments    parameters: none    units: rows and tokens
SELECT layer_loads.segment_id, layer_loads.layer, layer_loads.most_routed_rows, segments.num_tokens
FROM layer_loads
JOIN segments USING (segment_id)
WHERE layer_loads.most_routed_rows > segments.num_tokens
ORDER BY layer_loads.segment_id, layer_loads.layer
