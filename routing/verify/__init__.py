"""A second way to every figure of a run: pyarrow and NumPy over the files themselves, without SQL.

Nothing is shared with what it verifies, `core` included: it reads manifest and parts by itself, hashes, sums and cuts them again,
places experts on ranks (a placement file's ranks alone are handed in), and says what it found. A fault in the store or the query
room is then seen here, and not made here too.
"""
