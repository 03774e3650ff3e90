-- No file, network, attached database or extension any more.
-- reads: nothing    parameters: none
SET enable_external_access = false
