-- The worst layer's imbalance of every full batch, for its distribution.
-- grain: ep, batch_tokens, batch
-- reads: batch_imbalances
-- parameters: none
-- units: ratios, 1.0 is even; batches without rows are left out
SELECT ep, batch_tokens, batch, worst_imbalance
FROM batch_imbalances
WHERE worst_imbalance IS NOT NULL
ORDER BY ep, batch_tokens, batch
