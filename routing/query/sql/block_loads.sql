-- Loads gathered into blocks of experts, the coarsest cut that every asked EP size is made of.
-- grain: segment, layer, block
-- reads: loads
-- parameters: num_experts of the model; block_experts in a block, which divides num_experts / ep for every ep;
--     positions of the experts of decoder layer 0, 1 ..., which put a block's experts side by side; empty where they are already
-- units: routed_rows are (token, expert) pairs; num_strays are rows whose expert the model does not have
WITH placed AS (
    SELECT
        *,
        CASE
            WHEN expert BETWEEN 0 AND $num_experts - 1
                THEN COALESCE(LIST_EXTRACT($positions::INTEGER[], layer * $num_experts + expert + 1), expert)
            ELSE expert
        END AS position
    FROM loads
)

SELECT
    segment_id,
    layer,
    (position // $block_experts)::INTEGER AS block,
    SUM(routed_rows)::BIGINT AS routed_rows,
    MIN(routed_rows) AS least_routed_rows,
    MAX(routed_rows) AS most_routed_rows,
    COUNT(*) AS num_rows,
    COALESCE(
        BIT_COUNT(
            BITSTRING_AGG(position % $block_experts, 0, $block_experts - 1)
            FILTER (expert BETWEEN 0 AND $num_experts - 1)
        ),
        0
    ) AS num_experts,
    COUNT(*) FILTER (expert NOT BETWEEN 0 AND $num_experts - 1) AS num_strays
FROM placed
GROUP BY ALL
