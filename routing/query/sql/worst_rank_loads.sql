-- Every layer and rank of the batch that holds the largest imbalance: the rank's rows over the layer's even share.
-- grain: ep, batch_tokens, layer, rank, of one batch an (ep, batch_tokens)
-- reads: rank_loads, batch_imbalances
-- parameters: none
-- units: share is a ratio, 1.0 is even, the largest of a layer is its imbalance; null in a layer without rows; 0-based
WITH worst AS (
    SELECT ep, batch_tokens, ARG_MAX(batch, ROW(worst_imbalance, -batch)) AS batch
    FROM batch_imbalances
    WHERE worst_imbalance IS NOT NULL
    GROUP BY ep, batch_tokens
)

SELECT
    ep,
    batch_tokens,
    batch,
    layer,
    rank,
    routed_rows * ep / NULLIF((SUM(routed_rows) OVER (PARTITION BY ep, batch_tokens, batch, layer))::BIGINT, 0) AS share
FROM rank_loads
JOIN worst USING (ep, batch_tokens, batch)
ORDER BY ep, batch_tokens, layer, rank
