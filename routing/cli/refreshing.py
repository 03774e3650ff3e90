"""The verb that keeps a committed table current: `refresh`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import Json, print_answer, quiet_transformers, warn
from routing.cli.plain import command_given, say
from routing.cli.progress import StderrProgress
from routing.cli.reporting import show_check
from routing.cli.tables import print_table
from routing.core.errors import CheckFailedError, InputError
from routing.core.units import format_size

_COLUMNS = ("ep", "batch_tokens", "layer", "change", "committed", "fitted", "delta", "binds", "observed_max", "lost_support")
_WORDS = ("change", "binds", "lost_support")


def refresh(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file as pipelines/retail.yaml.", metavar="PLAN")],
    write: Annotated[bool, typer.Option("--write", help="Replace the plan's table; a person's comments in it stay.")] = False,
    markdown: Annotated[
        str | None, typer.Option("--markdown", help="A file for the text of a pull request; - prints it instead of the tables.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what a plan's runs lack, fit, check the plan's table and show what moved. Exits 1 where the table is violated."""
    quiet_transformers()
    from routing.stages.refresh import refresh as refresh_stage

    if as_json and markdown == "-":
        raise InputError("--markdown: - and --json both print on stdout; name a file")
    path = None if markdown in (None, "-") else Path(str(markdown))
    with StderrProgress() as progress:
        refreshed = refresh_stage(plan, progress, write=write, markdown_path=path, command=command_given())
    warn(refreshed.warnings)
    if markdown == "-":
        say(refreshed.markdown, nl=False)
        sys.stdout.flush()
    else:
        print_answer(refreshed.answer, as_json, _show_refresh)
    table = refreshed.answer["table"]
    say(f"{table}: {'written' if refreshed.answer['is_written'] else 'not written'}", err=True)
    if refreshed.failure is not None:
        raise CheckFailedError(refreshed.failure)
    if refreshed.nothing_said is not None:
        raise InputError(refreshed.nothing_said)


def _show_refresh(refreshed: dict[str, Any]) -> None:
    for step in refreshed["steps"]:
        say(f"{step['step']} {step['of']}: {step['did']}")
    if refreshed["check"] is not None:
        show_check(refreshed["check"])
    shown = [row for row in refreshed["difference"] if row["layer"] == "all" or row["change"] != "same" or row["lost_support"]]
    title = f"allowances for {refreshed['model']}: {refreshed['table']} against the fit of these runs (contiguous placement)"
    view = Table(title=title)
    for name in _COLUMNS:
        view.add_column(name.replace("_", " "), justify="left" if name in _WORDS else "right")
    for row in shown:
        view.add_row(*(_cell(name, row) for name in _COLUMNS))
    print_table(view)
    if left_out := len(refreshed["difference"]) - len(shown):
        say(f"{left_out} entries of single layers are as committed, on no less evidence")


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if name == "batch_tokens":
        return format_size(value)
    if name in ("committed", "fitted") and value is not None:
        return f"{value:.1f} {row[f'{name}_status']}"
    if name == "delta" and value is not None:
        return f"{value:+.1f}"
    if name == "observed_max" and value is not None:
        return f"{value:.4f}"
    if name == "lost_support":
        return "; ".join(value)
    return "-" if value is None else str(value)
