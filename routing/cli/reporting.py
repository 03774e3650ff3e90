"""The verbs that hold a table against runs: `report` and `check`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import Json, Runs, print_answer, warn
from routing.cli.plain import command_given, say
from routing.cli.tables import print_table
from routing.core.errors import CheckFailedError, InputError
from routing.core.units import format_size

_COMPARED = (
    *("run", "label", "ep", "batch_tokens", "layer", "allowance"),
    *("worst_imbalance", "worst_layer", "worst_batch", "num_batches", "num_above", "outcome"),
)
_EXCEEDED = ("policy", "run", "ep", "batch_tokens", "allowance_layer", "allowance", "layer", "batch", "rank", "factor")
_PROPOSED = ("ep", "batch_tokens", "layer", "allowance", "proposed", "binds")


def report(
    allowances: Annotated[Path, typer.Option("--allowances", help="The allowance table to hold against the runs, a YAML file.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write, one HTML file that loads nothing.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run directories, the first is the baseline of changes; none shows what the table says of itself."),
    ] = None,
    against: Annotated[Path | None, typer.Option("--against", help="An earlier table, to show what moved.")] = None,
    peaks: Annotated[
        Path | None, typer.Option("--peaks", help="Measured memory peaks, a CSV file; takes --waves.")
    ] = None,
    waves: Annotated[
        Path | None, typer.Option("--waves", help="The waves of these peaks by name, a YAML file; takes --peaks.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="A file for a short text for a pull request.")] = None,
    as_json: Json = False,
) -> None:
    """Write a page that says which allowances hold, on what evidence, and what is not covered."""
    from routing.stages.peaks import PeakFiles
    from routing.stages.report import ReportRequest
    from routing.stages.report import report as report_stage

    if (peaks is None) != (waves is None):
        raise InputError("--peaks: takes --waves FILE, and --waves takes --peaks FILE")
    request = ReportRequest(
        runs=tuple(runs or ()),
        allowances=allowances,
        out=out,
        against=against,
        peaks=None if peaks is None or waves is None else PeakFiles(peaks=peaks, waves=waves),
        markdown=markdown,
        command=command_given(),
    )
    written = report_stage(request)
    warn(written.warnings)
    print_answer(written.body, as_json, lambda _body: _show_verdict(written.headline, written.sentences))
    say(f"{out}: written", err=True)


def _show_verdict(headline: str, sentences: Sequence[str]) -> None:
    say(headline)
    for sentence in sentences:
        say(f"- {sentence}")


def check(
    table: Annotated[Path, typer.Argument(help="The allowance table, a YAML file that `routing fit` wrote.", metavar="FILE")],
    runs: Runs,
    placement: Annotated[
        str | None, typer.Option("--placement", help="The placement file of a table that is of one; else what the table records.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare every measured batch with its allowance. Exits 1 where one is above, proposes a value, changes nothing."""
    from routing.stages.check import check as check_stage
    from routing.store.placements import find_placement

    checked = check_stage(table, runs, placement=None if placement is None else find_placement(placement))
    warn(checked.warnings)
    print_answer(checked.answer, as_json, show_check)
    if checked.failure is not None:
        raise CheckFailedError(checked.failure)
    if checked.nothing_said is not None:
        raise InputError(checked.nothing_said)


def show_check(checked: dict[str, Any]) -> None:
    """What was compared, what is above, what to plan with instead."""
    title = "every run against every allowance; imbalance = busiest rank / even share (1.0 is even), indices are 0-based"
    _print(title, _COMPARED, checked["compared"])
    if checked["exceeded"]:
        _print("batches above their allowance, each with its worst layer", _EXCEEDED, checked["exceeded"])
    if checked["proposals"]:
        _print(
            "proposed by headroom-v1; nothing was changed",
            _PROPOSED,
            checked["proposals"],
        )
    for sentence in checked["not_compared"]:
        say(sentence)


def _print(title: str, names: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    table = Table(title=title)
    for name in names:
        table.add_column(
            name.replace("_", " "), justify="left" if name in ("run", "label", "policy", "outcome", "binds") else "right"
        )
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in names))
    print_table(table)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "batch_tokens":
        return format_size(value)
    if isinstance(value, float):
        return f"{value:g}" if name in ("allowance", "proposed") else f"{value:.6f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
