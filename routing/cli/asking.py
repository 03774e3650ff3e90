"""The verb that answers SQL: `sql`."""

import contextlib
import csv
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import (
    DEFAULT_BATCH_TOKENS,
    BatchTokens,
    Ep,
    Json,
    Order,
    Placed,
    View,
    batch_sizes_of,
    ep_sizes,
    order_of,
    warn,
)
from routing.cli.plain import plain, say
from routing.cli.tables import print_table
from routing.core.batches import require_view
from routing.core.errors import InputError, RoutingError
from routing.core.placement import PLACEMENT
from routing.core.units import BYTES_PER_GB, parse_number

if TYPE_CHECKING:
    import pyarrow as pa

    from routing.stages.sql import Session

FORMATS = ("table", "csv", "parquet")
NUM_SHOWN = 100
GRACE_S = 5  # an interrupt ends a query between two batches of rows; one function over one huge value has none
PROGRAM_BYTES = BYTES_PER_GB  # what threads and libraries map beside the engine's own memory
WELCOME = "One SELECT at a time, ended by ; over {views}. DESCRIBE imbalance; tells columns, Ctrl-D leaves."


def sql(
    runs_and_query: Annotated[
        list[str],
        typer.Argument(
            help="Run directories, then the query or a .sql file; without one a prompt, or the query from a pipe.",
            metavar="RUN... [QUERY]",
        ),
    ],
    ep: Ep = None,
    batch_tokens: BatchTokens = DEFAULT_BATCH_TOKENS,
    view: View = "packed",
    order: Order = "corpus",
    placement: Placed = PLACEMENT,
    format: Annotated[
        str | None, typer.Option("--format", help="table, csv or parquet. Default: a table in a terminal, csv in a pipe.")
    ] = None,
    memory_gb: Annotated[str, typer.Option("--memory-gb", help="What a query may take; GB = 1e9 bytes.")] = "4",
    time_s: Annotated[str, typer.Option("--time-s", help="Seconds by the clock that a query may take.")] = "60",
    as_json: Json = False,
) -> None:
    """Ask runs in SQL. Views: loads, segments, trajectories, paths, batches, rank_loads, imbalance; docs/sql.md has them."""
    from routing.query.guarded import Limits
    from routing.stages.sql import open_session
    from routing.store.placements import find_placement

    require_view(view)
    if format not in (None, *FORMATS) or (as_json and format is not None):
        raise InputError(f"--format: {format!r} is none of {', '.join(FORMATS)}" if not as_json else "--format: --json is one")
    shape = "json" if as_json else format or ("table" if sys.stdout.isatty() else "csv")
    if shape == "parquet" and sys.stdout.isatty():
        raise InputError("--format: parquet is no text; send it to a file: routing sql ... --format parquet > answer.parquet")
    folders, text = _split(runs_and_query)
    session = open_session(
        folders,
        eps=ep_sizes(ep),
        batch_sizes=batch_sizes_of(batch_tokens),
        view=view,
        order=order_of(order),
        placement=find_placement(placement),
        limits=Limits(
            memory_gb=float(parse_number(memory_gb, name="--memory-gb", of="GB (1e9 bytes)", low="0.1", high="100000")),
            time_s=float(parse_number(time_s, name="--time-s", of="seconds", low="0.1", high="1000000")),
        ),
    )
    if text is None and sys.stdin.isatty():
        _prompt(session, shape)
    else:
        _answer(session, _piped() if text is None else text, shape)


def _split(arguments: list[str]) -> tuple[list[Path], str | None]:
    """(the run directories, the query); a query has a blank in it, or is a .sql file."""
    from routing.store.files import read_text

    last = arguments[-1]
    is_file = last.endswith(".sql") and len(last.split()) == 1
    if not is_file and (os.path.isdir(last) or len(last.split()) == 1):
        return [Path(one) for one in arguments], None
    if len(arguments) == 1:
        raise InputError(f"{last[:60]!r}: a query and no run; routing sql RUN... QUERY")
    return [Path(one) for one in arguments[:-1]], read_text(Path(last), what="a query") if is_file else last


def _piped() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"sql: the query is not UTF-8 at byte {error.start}") from error


@contextlib.contextmanager
def _memory_limited(memory_gb: float) -> Iterator[None]:
    """The engine counts its own memory and not that of one huge value; the system refuses this process what is beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if not statm.exists():  # no Linux: the engine's own count is the limit
        yield
        return
    mapped_bytes = int(statm.read_text().split()[0]) * resource.getpagesize()
    limit = mapped_bytes + int(2 * memory_gb * BYTES_PER_GB) + PROGRAM_BYTES  # an answer is there twice while it is read
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(session: "Session", text: str, shape: str) -> None:
    from routing.query.guarded import time_limit_error

    question = session.prepare(text)
    time_s = session.limits.time_s
    watchdog = threading.Timer(time_s + GRACE_S, _give_up, [time_limit_error(time_s)])
    watchdog.daemon = True
    watchdog.start()
    with _memory_limited(session.limits.memory_gb):
        try:
            found = session.ask(question)
        finally:
            watchdog.cancel()
        warn(found.warnings)
        _print(found.rows, shape)
        sys.stdout.flush()


def _give_up(error: RoutingError) -> None:
    os.write(2, f"routing: {error}\n".encode())
    os._exit(error.exit_code)


def _prompt(session: "Session", shape: str) -> None:
    """Questions until the end of input; what one gets wrong is said, and the next is read."""
    import readline  # noqa: F401  # gives input() its history

    from routing.query.views import SQL_VIEWS

    say(WELCOME.format(views=", ".join(SQL_VIEWS)), err=True)
    text = ""
    while True:
        try:
            text += input("     " if text else "sql> ") + "\n"
        except EOFError:
            say("", err=True)
            return
        if text.rstrip().endswith(";") or not text.strip():
            try:
                if text.strip():
                    _answer(session, text, shape)
            except RoutingError as error:
                say(f"routing: {error}", err=True)
            text = ""


def _print(rows: "pa.Table", shape: str) -> None:
    names = rows.column_names
    if shape == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(rows, sys.stdout.buffer)
    elif shape == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        is_seen = sys.stdout.isatty()  # a pipe gets the values as they are
        for row in _rows(rows):
            writer.writerow([plain(cell) if is_seen and isinstance(cell, str) else cell for cell in map(row.get, names)])
    elif shape == "json":
        sys.stdout.write(json.dumps({"columns": names, "rows": list(_rows(rows))}, allow_nan=False, default=str) + "\n")
    else:
        view = Table(*names)
        for row in _rows(rows.slice(0, NUM_SHOWN)):
            view.add_row(*("-" if row[name] is None else str(row[name]) for name in names))
        print_table(view)
        if rows.num_rows > NUM_SHOWN:
            say(f"the first {NUM_SHOWN} of {rows.num_rows:,} rows; all of them: --format csv", err=True)


def _rows(rows: "pa.Table") -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Sums come as decimals, which are whole numbers here; what no number is, is null, as in every answer."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
