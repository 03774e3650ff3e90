-- The experts that fill one rank in one batch and layer.
-- grain: expert, at most num_wanted of them
-- reads: loads, batches
-- parameters: batch_tokens, batch, layer; experts, those of the rank; num_wanted
-- units: routed_rows are (token, expert) pairs; ties go to the smallest expert
SELECT loads.expert, SUM(batches.copies * loads.routed_rows)::BIGINT AS routed_rows
FROM loads
JOIN batches USING (segment_id)
WHERE
    batches.batch_tokens = $batch_tokens
    AND batches.batch = $batch
    AND loads.layer = $layer
    AND LIST_CONTAINS($experts::INTEGER[], loads.expert)
GROUP BY loads.expert
ORDER BY routed_rows DESC, loads.expert
LIMIT $num_wanted
