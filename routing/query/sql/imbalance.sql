-- The answer: the largest imbalance over batches, layers and ranks, and what its batch looks like to tools that average.
-- grain: ep, batch_tokens
-- reads: batch_imbalances
-- parameters: none
-- units: ratios, 1.0 is even; batch, layer and rank are 0-based, the smallest of equals in that order; null where undefined
SELECT
    ep,
    batch_tokens,
    MAX(worst_imbalance) AS worst_imbalance,
    ARG_MAX(worst_layer, ROW(worst_imbalance, -batch)) AS worst_layer,
    ARG_MAX(batch, ROW(worst_imbalance, -batch)) AS worst_batch,
    ARG_MAX(worst_rank, ROW(worst_imbalance, -batch)) AS worst_rank,
    ARG_MAX(mean_over_layers, ROW(worst_imbalance, -batch)) AS mean_over_layers,
    ARG_MAX(pooled_over_layers, ROW(worst_imbalance, -batch)) AS pooled_over_layers
FROM batch_imbalances
WHERE worst_imbalance IS NOT NULL
GROUP BY ALL
