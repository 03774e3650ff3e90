-- No bar on stdout, which DuckDB draws where Python was started without a file, and where our answers go.
-- grain: none    reads: nothing    parameters: none    units: none
SET enable_progress_bar = false
