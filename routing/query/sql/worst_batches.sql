-- Every full batch by its worst layer, the largest imbalance first.
-- grain: ep, batch_tokens, batch
-- reads: batch_imbalances
-- parameters: none
-- units: as in batch_imbalances.sql; ties in the order of ep, batch_tokens and batch
SELECT
    ep::BIGINT AS ep,
    batch_tokens,
    batch::BIGINT AS batch,
    worst_imbalance,
    worst_layer::BIGINT AS worst_layer,
    worst_rank::BIGINT AS worst_rank,
    busiest_rows,
    routed_rows,
    mean_over_layers,
    pooled_over_layers
FROM batch_imbalances
WHERE worst_imbalance IS NOT NULL
ORDER BY worst_imbalance DESC, ep, batch_tokens, batch
