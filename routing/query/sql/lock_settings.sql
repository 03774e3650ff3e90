-- No setting can be changed any more, this one among them.
-- grain: none    reads: nothing    parameters: none    units: none
SET lock_configuration = true
