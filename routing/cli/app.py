"""Verbs, flags and exit codes. Results go to stdout (`--json` for machines), progress and warnings to stderr."""

import io
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from routing.cli import (
    allowing,
    asking,
    doctoring,
    estimating,
    fitted,
    importing,
    measuring,
    placing,
    refreshing,
    reporting,
    tables,
    verifying,
)
from routing.cli.common import (
    DEFAULT_BATCH_TOKENS,
    BatchTokens,
    Ep,
    Json,
    Order,
    Placed,
    Runs,
    View,
    batch_sizes_of,
    ep_sizes,
    order_of,
    print_answer,
    warn,
)
from routing.cli.examples import add_examples
from routing.cli.plain import say
from routing.core.batches import require_view
from routing.core.errors import InputError, RoutingError
from routing.core.placement import PLACEMENT

app = typer.Typer(
    name="routing",
    help="How unevenly Mixture-of-Experts models route their tokens, and the memory to allow for it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INTERRUPTED = "interrupted; what was committed stays, the same command goes on from there"


app.command()(measuring.measure)


@app.command()
def imbalance(
    runs: Runs,
    ep: Ep = None,
    batch_tokens: BatchTokens = DEFAULT_BATCH_TOKENS,
    view: View = "packed",
    order: Order = "corpus",
    by: Annotated[str | None, typer.Option("--by", help="`layer`: one row a layer instead of the worst over layers.")] = None,
    placement: Placed = PLACEMENT,
    as_json: Json = False,
) -> None:
    """Worst-layer imbalance (busiest rank / even share) by EP size and batch size, beside the mean and the pooled figure."""
    from routing.stages.imbalance import imbalance as imbalance_stage
    from routing.store.placements import find_placement

    require_view(view)
    if by not in (None, "layer"):
        raise InputError(f"--by: {by!r} is not known; layer")
    placed = find_placement(placement)
    answer = imbalance_stage(
        runs,
        eps=ep_sizes(ep),
        batch_sizes=batch_sizes_of(batch_tokens),
        view=view,
        order=order_of(order),
        by_layer=by == "layer",
        placement=placed,
    )
    warn(answer.warnings)
    print_answer({"placement": placed.name, "rows": answer.rows}, as_json, tables.show_imbalance)
    if all(row["num_batches"] == 0 for row in answer.rows):
        raise InputError(
            f"--batch-tokens: no full batch of {batch_tokens} tokens in {', '.join(map(str, runs))}; ask for smaller batches"
        )


@app.command()
def fit(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", help="The allowance table to write, a YAML file.")],
    ep: Ep = None,
    batch_tokens: BatchTokens = DEFAULT_BATCH_TOKENS,
    order: Order = "corpus",
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Entries of single MoE layers too, beside all layers.")] = False,
    floor: Annotated[
        list[Path] | None, typer.Option("--floor", help="A guard's log: no allowance is left below what it saw. Repeatable.")
    ] = None,
    placement: Placed = PLACEMENT,
    as_json: Json = False,
) -> None:
    """Turn measured imbalances into the allowances that memory planning must use, with their evidence."""
    from routing.stages.fit import fit as fit_stage
    from routing.store.placements import find_placement

    answer = fit_stage(
        runs,
        out=out,
        eps=ep_sizes(ep),
        batch_sizes=batch_sizes_of(batch_tokens),
        order=order_of(order),
        by_layer=per_layer,
        floor_logs=tuple(floor or ()),
        placement=find_placement(placement),
    )
    warn(answer.warnings)
    print_answer(answer.table, as_json, fitted.show_fit)
    say(f"{out}: written", err=True)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(help="One run directory or several.")],
    as_json: Json = False,
) -> None:
    """What a run holds: policy, corpus, tokens, layers, experts, checks, and where it stopped."""
    from routing.stages.show import show as show_stage

    answers = [show_stage(run) for run in runs]
    for answer in answers:
        warn(answer.warnings)
    print_answer({"runs": [answer.facts for answer in answers]}, as_json, tables.show_runs)
    for answer in answers:
        if answer.failure is not None:
            raise answer.failure


app.command()(asking.sql)
app.command()(doctoring.doctor)
app.command()(reporting.report)
app.command()(allowing.allowance)
app.command()(allowing.explain)
app.command()(reporting.check)
app.command()(refreshing.refresh)
app.command()(verifying.verify)
app.command()(verifying.repair)
app.add_typer(placing.app)
app.command()(estimating.estimate)
app.command()(estimating.wave)
app.command()(estimating.replay)
app.add_typer(importing.app, name="import")
add_examples(app)


def _leave(message: str, exit_code: int) -> NoReturn:
    say("routing: " + " ".join(message.split()), err=True)
    sys.exit(exit_code)


class _InterruptedError(BaseException):
    """SIGINT or SIGTERM; no library on the way takes it for its own."""


_was_interrupted = False


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    global _was_interrupted
    _was_interrupted = True  # DuckDB and lazy imports turn whatever is raised inside them into errors of their own
    raise _InterruptedError


def main() -> None:
    """The entry point: one line and an exit code for everything that a user can meet."""
    global _was_interrupted
    _was_interrupted = False
    if sys.stdout is None:  # closed by who called us, who then wants the exit code alone
        sys.stdout = io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold bytes that are no text
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _interrupt)
    if sys.argv[1:2] not in (["measure"], ["refresh"]):  # whose hub downloads need a broken connection to be an error
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader who leaves early ends us as it ends any tool
    try:
        exit_code = app(standalone_mode=False)
    except _InterruptedError:
        _leave(INTERRUPTED, 130)
    except Exception as error:
        if _was_interrupted:
            _leave(INTERRUPTED, 130)
        said = _said_of(error)
        if said is None:
            raise
        _leave(*said)
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _said_of(error: Exception) -> tuple[str, int] | None:
    """(What a user reads of an error, its exit code); None for a fault of ours."""
    if isinstance(error, RoutingError):
        return str(error), error.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("routing"):
        package = error.name.partition(".")[0]  # a machine that only measures lacks what the other verbs need
        return f"{sys.argv[1]} needs {package}, which is not installed here; install routing with all it depends on", 2
    if isinstance(error, MemoryError):
        return "out of memory; ask for smaller batches, or a larger machine", 4
    if isinstance(error, OSError):
        return f"{error.filename or 'input/output'}: {error.strerror or error}", 4
    if hasattr(error, "format_message"):  # the option parser's own errors have it
        return f"{error.format_message()} (routing --help)", 2
    return None
