"""One module a stage: read, call the rooms, write. The command line turns verbs into these and prints what they return."""
