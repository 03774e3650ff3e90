"""SQL that a user wrote: one SELECT over views, no file, no network, no setting, within limits of memory and time.

Two locks, either of which would do: the parsed query is held to an allow-list before it runs, and the engine that runs it can
open no file but the parts of the runs, takes no extension and no setting.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routing.core.errors import InputError, StorageError
from routing.query.runner import as_pattern, ask, connect, run_sql
from routing.query.views import SQL_VIEWS

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
TOO_DEEP = "the query nests too deep; ask in steps, WITH names them"
_TABLE_FUNCTIONS = frozenset({"generate_series", "range", "unnest"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a query may take: of the engine's memory, and by the clock."""

    memory_gb: float
    time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A query that may run. `tables` and `columns` are the names in it; `is_of_schema` for DESCRIBE, SUMMARIZE, SHOW.

    `joins` are pairs of (the tables joined, the columns that the join compares).
    """

    text: str
    tables: frozenset[str]
    columns: frozenset[str]
    joins: tuple[tuple[frozenset[str], frozenset[str]], ...]
    is_of_schema: bool

    def wants(self, view: str) -> bool:
        """Whether the answer depends on a view being there."""
        return self.is_of_schema or view in self.tables


def read_question(text: str) -> Question:
    """`text` parsed and held to what is allowed; InputError says what is not."""
    _require_utf8(text)
    con = connect()
    try:
        tree = json.loads(ask(con, "sql/parsed.sql", query=text)[0]["tree"])
    except RecursionError as error:
        raise InputError(f"sql: {TOO_DEEP}") from error
    finally:
        con.close()
    if tree["error"]:
        what = "only SELECT is answered" if tree["error_type"] == "not implemented" else _one_line(tree["error_message"])
        raise InputError(f"sql: {what}; a query reads the views, as SELECT * FROM imbalance LIMIT 5")
    if len(tree["statements"]) != 1:
        raise InputError(f"sql: {len(tree['statements'])} statements, one is answered at a time")
    nodes = list(_nodes(tree["statements"][0]))
    for node in nodes:
        _require_allowed(node)
    tables, named = _tables(nodes), {str(one["key"]).lower() for one in nodes if "key" in one and "value" in one}
    if unknown := sorted(tables - {*SQL_VIEWS, *named}):
        raise InputError(f"sql: no view {unknown[0][:80]!r}; there are {', '.join(SQL_VIEWS)}")
    return Question(
        text=text,
        tables=tables,
        columns=_columns(nodes),
        joins=tuple(_join(node) for node in nodes if node.get("type") == "JOIN"),
        is_of_schema=any(node.get("type") == "SHOW_REF" for node in nodes),
    )


def _require_utf8(text: str) -> None:
    """A terminal's or pipe's bytes that are no UTF-8 come as lone surrogates, which no database takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"sql: the query is not UTF-8 at character {error.start}") from error


def _require_allowed(node: dict[str, Any]) -> None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _QUERY_NODES:
        raise InputError("sql: only SELECT is answered, and nothing inside one may write")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS:
            known = ", ".join(sorted(_TABLE_FUNCTIONS))
            raise InputError(f"sql: {name[:60]}() is refused in FROM; a query reads the views and {known}, no files")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _tables(nodes: Sequence[dict[str, Any]]) -> frozenset[str]:
    return frozenset(str(one["table_name"]).lower() for one in nodes if one.get("type") == "BASE_TABLE")


def _columns(nodes: Sequence[dict[str, Any]]) -> frozenset[str]:
    return frozenset(one["column_names"][-1].lower() for one in nodes if one.get("class") == "COLUMN_REF")


def _join(node: dict[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """A natural join compares every column that both sides have, `run` among them; a cross join's WHERE is not looked at."""
    compared = {str(name).lower() for name in node["using_columns"]} | _columns(list(_nodes(node["condition"])))
    if node["ref_type"] in ("NATURAL", "CROSS"):
        compared.add("run")
    return _tables(list(_nodes([node["left"], node["right"]]))), frozenset(compared)


@contextlib.contextmanager
def guarded(parts: Sequence[Path], limits: Limits) -> "Iterator[DuckDBPyConnection]":
    """A connection that can open `parts` and nothing else."""
    con = connect(memory_gb=limits.memory_gb)
    try:
        paths = [form for part in parts for form in dict.fromkeys((str(part.absolute()), as_pattern(part)))]
        run_sql(con, "sql/allow_parts.sql", paths=paths)
        run_sql(con, "sql/close_files.sql")
        run_sql(con, "sql/lock_settings.sql")
        yield con
    finally:
        con.close()


def answer(con: "DuckDBPyConnection", question: Question, limits: Limits) -> "pa.Table":
    """The rows of a query, columns with one name numbered apart. InputError for what DuckDB refuses, StorageError at a limit."""
    import duckdb

    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        con.interrupt()

    timer = threading.Timer(limits.time_s, stop)
    timer.daemon = True
    timer.start()
    try:
        rows = con.sql(question.text)
        if not question.is_of_schema:
            rows.create("answer")  # a table: its memory is the engine's, and is limited
            rows = con.table("answer")
        timer.cancel()
        return rows.to_arrow_table()
    except duckdb.InterruptException:
        if not stopped.is_set():
            raise
        raise time_limit_error(limits.time_s) from None
    except duckdb.OutOfMemoryException:
        raise StorageError(f"sql: more than {limits.memory_gb:g} GB needed; ask for less, or allow more: --memory-gb") from None
    except duckdb.Error as error:
        raise InputError(f"sql: {_one_line(str(error))}") from error
    finally:
        timer.cancel()


def time_limit_error(time_s: float) -> StorageError:
    """What is said of a query that was stopped after `time_s`, whoever stopped it."""
    return StorageError(f"sql: stopped after {time_s:g} s; ask for less, or allow more: --time-s")


def _one_line(message: str) -> str:
    """DuckDB's message; not its advice to SET a depth, which is refused here."""
    return TOO_DEEP if "max_expression_depth" in message else " ".join(message.split())[:300]
