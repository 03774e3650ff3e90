-- Imbalance of one layer in one batch: busiest rank x ep / rows, one float64 division of whole numbers; 1.0 is even.
-- grain: ep, batch_tokens, batch, layer
-- reads: rank_loads
-- parameters: none
-- units: busiest_rows and routed_rows are (token, expert) pairs; busiest_rank is the smallest of equals; null without rows
SELECT
    ep,
    batch_tokens,
    batch,
    layer,
    ARG_MAX(rank, ROW(routed_rows, -rank)) AS busiest_rank,
    MAX(routed_rows) AS busiest_rows,
    SUM(routed_rows)::BIGINT AS routed_rows,
    MAX(routed_rows) * ep / NULLIF(SUM(routed_rows)::BIGINT, 0) AS imbalance
FROM rank_loads
GROUP BY ep, batch_tokens, batch, layer
