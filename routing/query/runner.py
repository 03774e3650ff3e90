"""SQL is source code: one query a file beside this module, values bound by name, run by the one function here."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routing.core.errors import DamagedDataError, StorageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

NUM_THREADS = 4  # a run's tables are small: more threads spend more processor time than they save
_PATTERN_LETTER = re.compile(r"[*?\[]")


def connect(*, memory_gb: float | None = None) -> "DuckDBPyConnection":
    """A DuckDB database in memory that reads no Python variable and loads no extension from a network.

    With `memory_gb` (1e9 bytes) it takes no more and writes nothing to disk where that is not enough.
    """
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": NUM_THREADS,
        "python_enable_replacements": "false",  # else a query silently reads a Python variable named like a table
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": tempfile.gettempdir() if memory_gb is None else "",
    }
    if memory_gb is not None:
        settings["memory_limit"] = f"{memory_gb}GB"
    con = duckdb.connect(":memory:", config=settings)
    run_sql(con, "sql/no_progress_bar.sql")
    return con


@contextlib.contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Memory, disk or a page that can't be read: one line instead of DuckDB's own error."""
    import duckdb

    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise StorageError(f"{name}: not answered, {' '.join(str(error).split())[:200]}") from error
    except (duckdb.InvalidInputException, duckdb.DataError) as error:
        raise DamagedDataError(f"{name}: the run can't be read, {' '.join(str(error).split())[:200]}") from error


def run_sql(con: "DuckDBPyConnection", name: str, **params: Any) -> "DuckDBPyRelation":
    """Runs the query in the file `name` (`sql/imbalance.sql`) with its `$params` bound; StorageError where DuckDB can't."""
    text = files("routing.query").joinpath(name).read_text(encoding="utf-8")
    with one_line_errors(name):
        return con.sql(text, params=params or None)


def keep(con: "DuckDBPyConnection", table: str, name: str, **params: Any) -> None:
    """Keeps a query's rows as `table`, for the queries after it."""
    answer = run_sql(con, name, **params)
    with one_line_errors(name):
        answer.create(table)


def ask(con: "DuckDBPyConnection", name: str, **params: Any) -> list[dict[str, Any]]:
    """A query's rows, each a dictionary by column."""
    answer = run_sql(con, name, **params)
    columns = answer.columns
    with one_line_errors(name):
        rows = answer.fetchall()
    return [dict(zip(columns, row, strict=True)) for row in rows]


def show(con: "DuckDBPyConnection", table: str, paths: Sequence[Path]) -> None:
    """Names Parquet files as one table. `paths` come from a manifest: a glob would also match temporary files.

    DuckDB takes every path for a pattern, so that each letter that means something in one stands for itself in brackets here.
    """
    with one_line_errors(table):
        con.read_parquet([as_pattern(path) for path in paths]).create_view(table)


def as_pattern(path: Path) -> str:
    """A path as the pattern that stands for it alone."""
    return _PATTERN_LETTER.sub(r"[\g<0>]", os.path.abspath(path))
