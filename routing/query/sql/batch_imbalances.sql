-- Imbalance of one batch, three ways side by side: its worst layer, the mean over layers, all layers pooled.
-- grain: ep, batch_tokens, batch
-- reads: layer_imbalances, rank_loads
-- parameters: none
-- units: busiest_rows and routed_rows are of the worst layer, (token, expert) pairs; the smallest layer of equals; null without rows
WITH pooled_ranks AS (
    SELECT ep, batch_tokens, batch, rank, SUM(routed_rows)::BIGINT AS routed_rows
    FROM rank_loads
    GROUP BY ALL
),

pooled AS (
    SELECT
        ep,
        batch_tokens,
        batch,
        MAX(routed_rows) * ep / NULLIF(SUM(routed_rows)::BIGINT, 0) AS pooled_over_layers
    FROM pooled_ranks
    GROUP BY ep, batch_tokens, batch
),

layers AS (
    SELECT
        ep,
        batch_tokens,
        batch,
        MAX(imbalance) AS worst_imbalance,
        ARG_MAX(layer, ROW(imbalance, -layer)) FILTER (imbalance IS NOT NULL) AS worst_layer,
        ARG_MAX(busiest_rank, ROW(imbalance, -layer)) FILTER (imbalance IS NOT NULL) AS worst_rank,
        ARG_MAX(busiest_rows, ROW(imbalance, -layer)) FILTER (imbalance IS NOT NULL) AS busiest_rows,
        ARG_MAX(routed_rows, ROW(imbalance, -layer)) FILTER (imbalance IS NOT NULL) AS routed_rows,
        SUM(busiest_rows)::BIGINT * ep / NULLIF(SUM(routed_rows)::BIGINT, 0) AS mean_over_layers
    FROM layer_imbalances
    GROUP BY ep, batch_tokens, batch
)

SELECT layers.*, pooled.pooled_over_layers
FROM layers
JOIN pooled USING (ep, batch_tokens, batch)
ORDER BY ep, batch_tokens, batch
