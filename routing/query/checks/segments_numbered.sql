-- Segment ids are 0, 1, 2, ..., each once, every hash once, and no segment is empty.
-- grain: segment    reads: segments    parameters: none    units: tokens
SELECT segment_id, num_tokens, copies_of_id, copies_of_hash
FROM (
    SELECT
        segment_id,
        num_tokens,
        COUNT(*) OVER (PARTITION BY segment_id) AS copies_of_id,
        COUNT(*) OVER (PARTITION BY segment_hash) AS copies_of_hash,
        COUNT(*) OVER () AS num_segments
    FROM segments
)
WHERE copies_of_id > 1 OR copies_of_hash > 1 OR num_tokens < 1 OR segment_id NOT BETWEEN 0 AND num_segments - 1
ORDER BY segment_id
