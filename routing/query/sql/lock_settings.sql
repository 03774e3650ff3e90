-- No setting can be changed any more, this one among them.
-- reads: nothing    parameters: none
SET lock_configuration = true
