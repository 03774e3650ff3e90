-- Every (segment, MoE layer, expert) has a row, zero or not; in an unfinished run a segment may still have none at all.
-- grain: segment, layer
-- reads: segments, layer_loads
-- parameters: moe_layers, decoder layer indices; num_experts; is_finished
-- units: experts
WITH grid AS (
    SELECT segments.segment_id, layers.layer
    FROM segments
    CROSS JOIN (SELECT UNNEST($moe_layers::INTEGER[]) AS layer) AS layers
    WHERE $is_finished OR segments.segment_id IN (SELECT segment_id FROM layer_loads)
)

SELECT
    grid.segment_id,
    grid.layer,
    COALESCE(layer_loads.num_experts, 0) AS num_experts,
    $num_experts AS expected_num_experts
FROM grid
LEFT JOIN layer_loads USING (segment_id, layer)
WHERE COALESCE(layer_loads.num_experts, 0) <> $num_experts
ORDER BY grid.segment_id, grid.layer
