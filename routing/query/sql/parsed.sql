-- A user's query as a tree, or the parser's error; nothing of it is run.
-- grain: one row    reads: nothing    parameters: query, text    units: none; tree is JSON
SELECT JSON_SERIALIZE_SQL($query::VARCHAR) AS tree
