-- What each rank receives: rank r of ep owns the contiguous experts from r * num_experts / ep.
-- grain: ep, batch_tokens, batch, layer, rank
-- reads: block_loads, batches
-- parameters: eps, EP sizes that divide num_blocks; num_blocks over all experts
-- units: routed_rows are (token, expert) pairs of the batch
WITH batch_blocks AS (
    SELECT
        batches.batch_tokens,
        batches.batch,
        block_loads.layer,
        block_loads.block,
        SUM(batches.copies * block_loads.routed_rows)::BIGINT AS routed_rows
    FROM batches
    JOIN block_loads USING (segment_id)
    GROUP BY ALL
),

sizes AS (
    SELECT UNNEST($eps::INTEGER[]) AS ep
)

SELECT
    sizes.ep,
    batch_blocks.batch_tokens,
    batch_blocks.batch,
    batch_blocks.layer,
    (batch_blocks.block // ($num_blocks // sizes.ep))::INTEGER AS rank,
    SUM(batch_blocks.routed_rows)::BIGINT AS routed_rows
FROM batch_blocks
CROSS JOIN sizes
GROUP BY ALL
