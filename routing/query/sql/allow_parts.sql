-- The only files that this connection may open, once it may open no others.
-- grain: none    reads: nothing    parameters: paths, an array    units: none
SET allowed_paths = $paths
