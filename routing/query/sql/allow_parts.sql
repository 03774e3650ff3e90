-- The only files that this connection may open, once it may open no others.
-- reads: nothing    parameters: paths, array of text
SET allowed_paths = $paths
