-- Loads name a known segment, a MoE layer and an expert that the model has, and none is negative.
-- grain: segment, layer
-- reads: layer_loads, segments
-- parameters: moe_layers, decoder layer indices
-- units: num_strays are rows whose expert the model does not have; least_routed_rows are (token, expert) pairs
SELECT layer_loads.segment_id, layer_loads.layer, num_strays, least_routed_rows
FROM layer_loads
LEFT JOIN segments USING (segment_id)
WHERE
    num_strays > 0
    OR least_routed_rows < 0
    OR segments.segment_id IS NULL
    OR NOT LIST_CONTAINS($moe_layers::INTEGER[], layer_loads.layer)
ORDER BY layer_loads.segment_id, layer_loads.layer
