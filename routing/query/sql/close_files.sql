-- No file, network, attached database or extension any more.
-- grain: none    reads: nothing    parameters: none    units: none
SET enable_external_access = false
