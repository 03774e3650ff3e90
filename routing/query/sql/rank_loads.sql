-- What each rank receives: the blocks that it owns.
-- grain: ep, batch_tokens, batch, layer, rank
-- reads: block_loads, batches
-- parameters: eps, blocks, ranks: arrays of one length, the rank that owns each block at each EP size
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

owned AS (
    SELECT
        UNNEST($eps::INTEGER[]) AS ep,
        UNNEST($blocks::INTEGER[]) AS block,
        UNNEST($ranks::INTEGER[]) AS rank
)

SELECT
    owned.ep,
    batch_blocks.batch_tokens,
    batch_blocks.batch,
    batch_blocks.layer,
    owned.rank,
    SUM(batch_blocks.routed_rows)::BIGINT AS routed_rows
FROM batch_blocks
JOIN owned USING (block)
GROUP BY ALL
