-- Every segment lies on some trajectory's path.
-- grain: segment    reads: segments, paths    parameters: none    units: none
SELECT segments.segment_id
FROM segments
ANTI JOIN paths USING (segment_id)
ORDER BY segments.segment_id
