-- Loads gathered into blocks of neighbouring experts, the coarsest cut that every asked EP size is made of.
-- grain: segment, layer, block
-- reads: loads
-- parameters: num_experts of the model; block_experts in a block, which divides num_experts / ep for every ep
-- units: routed_rows are (token, expert) pairs; num_strays are rows whose expert the model does not have
SELECT
    segment_id,
    layer,
    (expert // $block_experts)::INTEGER AS block,
    SUM(routed_rows)::BIGINT AS routed_rows,
    MIN(routed_rows) AS least_routed_rows,
    MAX(routed_rows) AS most_routed_rows,
    COUNT(*) AS num_rows,
    COALESCE(
        BIT_COUNT(
            BITSTRING_AGG(expert % $block_experts, 0, $block_experts - 1)
            FILTER (expert BETWEEN 0 AND $num_experts - 1)
        ),
        0
    ) AS num_experts,
    COUNT(*) FILTER (expert NOT BETWEEN 0 AND $num_experts - 1) AS num_strays
FROM loads
GROUP BY ALL
