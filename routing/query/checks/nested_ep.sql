-- Where n divides m, a rank of n is whole ranks of m: imbalance(n) <= imbalance(m) <= m / n x imbalance(n), in every batch and layer.
-- grain: ep, larger_ep, batch_tokens, batch, layer
-- reads: layer_imbalances
-- parameters: none
-- units: (token, expert) pairs of the busiest rank and of the layer; compared as whole numbers
SELECT
    few.layer,
    few.batch_tokens,
    few.batch,
    few.ep,
    many.ep AS larger_ep,
    few.busiest_rows,
    many.busiest_rows AS larger_ep_busiest_rows,
    few.routed_rows,
    many.routed_rows AS larger_ep_routed_rows
FROM layer_imbalances AS few
JOIN layer_imbalances AS many USING (batch_tokens, batch, layer)
WHERE
    few.ep < many.ep
    AND many.ep % few.ep = 0
    AND (
        few.routed_rows <> many.routed_rows
        OR few.busiest_rows * few.ep > many.busiest_rows * many.ep
        OR many.busiest_rows > few.busiest_rows
    )
ORDER BY few.batch_tokens, few.batch, few.layer, few.ep, many.ep
