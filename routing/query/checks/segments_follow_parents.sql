-- A segment starts where its parent ends; one without a parent starts at 0.
-- grain: segment    reads: segments    parameters: none    units: tokens
SELECT
    child.segment_id,
    child.parent_segment_id,
    child.first_position,
    parent.first_position + parent.num_tokens AS expected_first_position
FROM segments AS child
LEFT JOIN segments AS parent ON parent.segment_id = child.parent_segment_id
WHERE
    CASE
        WHEN child.parent_segment_id IS NULL THEN child.first_position <> 0
        ELSE COALESCE(child.first_position <> parent.first_position + parent.num_tokens, TRUE)
    END
ORDER BY child.segment_id
