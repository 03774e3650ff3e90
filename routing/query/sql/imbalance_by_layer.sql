-- The answer for each layer: its largest imbalance over batches and ranks.
-- grain: ep, batch_tokens, layer
-- reads: layer_imbalances, batch_imbalances
-- parameters: none
-- units: as in imbalance.sql; mean_over_layers and pooled_over_layers are over all layers of that layer's worst batch
SELECT
    layers.ep,
    layers.batch_tokens,
    layers.layer,
    MAX(layers.imbalance) AS worst_imbalance,
    layers.layer AS worst_layer,
    ARG_MAX(layers.batch, ROW(layers.imbalance, -layers.batch)) AS worst_batch,
    ARG_MAX(layers.busiest_rank, ROW(layers.imbalance, -layers.batch)) AS worst_rank,
    ARG_MAX(batches.mean_over_layers, ROW(layers.imbalance, -layers.batch)) AS mean_over_layers,
    ARG_MAX(batches.pooled_over_layers, ROW(layers.imbalance, -layers.batch)) AS pooled_over_layers
FROM layer_imbalances AS layers
JOIN batch_imbalances AS batches USING (ep, batch_tokens, batch)
WHERE layers.imbalance IS NOT NULL
GROUP BY ALL
