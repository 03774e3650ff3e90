-- The segments of every full batch of every size, from arrays of one length.
-- grain: batch_tokens, batch, segment    reads: nothing
-- parameters: batch_tokens, batch, segment_id, copies: arrays; copies is how often the segment counts in its batch
-- units: batch_tokens are tokens of the view that was cut
SELECT
    UNNEST($batch_tokens::BIGINT[]) AS batch_tokens,
    UNNEST($batch::INTEGER[]) AS batch,
    UNNEST($segment_id::INTEGER[]) AS segment_id,
    UNNEST($copies::BIGINT[]) AS copies
