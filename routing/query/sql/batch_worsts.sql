-- What the fit needs of every batch, as whole numbers.
-- grain: ep, batch_tokens, batch
-- reads: batch_imbalances
-- parameters: ep, batch_tokens
-- units: busiest_rows and routed_rows are (token, expert) pairs of the batch's worst layer
SELECT batch, worst_layer AS layer, worst_rank AS rank, busiest_rows, routed_rows
FROM batch_imbalances
WHERE ep = $ep AND batch_tokens = $batch_tokens AND worst_imbalance IS NOT NULL
ORDER BY batch
