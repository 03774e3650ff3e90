-- What the loads checks compare: one layer of one segment over all its experts.
-- grain: segment, layer    reads: block_loads    parameters: none    units: routed_rows are (token, expert) pairs
SELECT
    segment_id,
    layer,
    SUM(routed_rows)::BIGINT AS routed_rows,
    MIN(least_routed_rows) AS least_routed_rows,
    MAX(most_routed_rows) AS most_routed_rows,
    SUM(num_rows)::BIGINT AS num_rows,
    SUM(num_experts)::BIGINT AS num_experts,
    SUM(num_strays)::BIGINT AS num_strays
FROM block_loads
GROUP BY ALL
