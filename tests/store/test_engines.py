"""A run is plain Parquet: Polars, DuckDB and pyarrow read the same numbers from it."""

import duckdb
import polars as pl
import pyarrow.compute as pc

from tests.stores import write_tiny_run


def test_three_engines_read_the_same_loads(tmp_path):
    loads = [{(0, 0): [3, 2], (1, 0): [1, 0]}, {(2, 0): [0, 4]}]
    run = write_tiny_run(tmp_path / "run", paths=[[0, 1], [0, 2]], segment_tokens=[5, 1, 4], loads=loads, num_experts=2, top_k=1)
    files = [str(path) for path in run.part_paths("loads")]
    arrow = run.read("loads")
    polars = pl.read_parquet(files)
    duck = duckdb.connect().read_parquet(files).fetchall()
    expected = [(0, 0, 0, 3), (0, 0, 1, 2), (1, 0, 0, 1), (1, 0, 1, 0), (2, 0, 0, 0), (2, 0, 1, 4)]
    assert [tuple(row.values()) for row in arrow.to_pylist()] == expected
    assert polars.rows() == expected
    assert duck == expected
    assert polars.schema["routed_rows"] == pl.Int32
    assert pc.sum(arrow["routed_rows"]).as_py() == 10
