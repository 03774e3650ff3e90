-- Every layer's rows are top_k x tokens, exactly: padding, dropped or repeated tokens and missed experts all break this.
-- grain: segment, layer
-- reads: layer_loads, segments
-- parameters: top_k, experts a token is sent to
-- units: (token, expert) pairs
SELECT
    layer_loads.segment_id,
    layer_loads.layer,
    layer_loads.routed_rows,
    segments.num_tokens::BIGINT * $top_k AS expected_routed_rows
FROM layer_loads
JOIN segments USING (segment_id)
WHERE layer_loads.routed_rows <> segments.num_tokens::BIGINT * $top_k
ORDER BY layer_loads.segment_id, layer_loads.layer
