"""A run's tables in DuckDB, its loads gathered once into blocks of experts."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from routing.core.observed import Caution
from routing.query.runner import ask, connect, keep, show
from routing.store.run import Run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TREE_TABLES = ("segments", "trajectories", "paths")


@contextlib.contextmanager
def opened_tables(
    run: Run, *, block_experts: int, positions: Sequence[int] = ()
) -> "Iterator[tuple[DuckDBPyConnection, tuple[Caution, ...]]]":
    """A connection with the run's four tables, `block_loads` and `layer_loads`; and the notice of repeats that were dropped.

    `block_experts` experts form a block; it divides num_experts / ep for every EP size to be asked about. They are neighbours, or
    stand side by side at `positions`, which has every expert's of decoder layer 0, then 1, and so on.
    """
    con = _gathered(run, block_experts, positions, loads="stored_loads")
    try:
        repeated_rows = ask(con, "sql/repeated_rows.sql")[0]["repeated_rows"]
        cautions: tuple[Caution, ...] = ()
        if repeated_rows:
            con.close()
            con = _gathered(run, block_experts, positions, loads="distinct_loads")
            message = f"{run.name}: {repeated_rows} rows of loads are there twice, the exact repeats are dropped"
            cautions = (Caution(code="repeated_loads", message=message),)
        yield con, cautions
    finally:
        con.close()


def _gathered(run: Run, block_experts: int, positions: Sequence[int], *, loads: str) -> "DuckDBPyConnection":
    con = connect()
    for table in TREE_TABLES:
        show(con, table, run.part_paths(table))
    if paths := run.part_paths("loads"):
        show(con, "stored_loads", paths)
    else:
        keep(con, "stored_loads", "sql/no_loads.sql")
    if loads == "distinct_loads":
        keep(con, loads, "sql/distinct_loads.sql")
    con.table(loads).create_view("loads")
    sizes = {"block_experts": block_experts, "num_experts": run.manifest.shape.num_experts}
    keep(con, "block_loads", "sql/block_loads.sql", **sizes, positions=list(positions))
    keep(con, "layer_loads", "sql/layer_loads.sql")
    return con
