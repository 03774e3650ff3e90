"""The verbs that take no file's word for it: `verify` and `repair`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import Json, print_answer, warn
from routing.cli.plain import say
from routing.cli.tables import print_table
from routing.core.batches import BATCH_SIZES
from routing.core.errors import InputError

_LEFT = ("run", "check", "of", "first_failure", "outcome", "differences")


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Run directories; or an allowance table, with the runs it rests on.")],
    runs: Annotated[
        list[Path] | None, typer.Option("--runs", help="With a table: a run that it was fitted from, and the others after it.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option("--placement", help="The placement file of a table that is of one; else what the table records.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count every figure of a run a second time without SQL, or fit a table again and compare. Exits 1 where they differ."""
    files = [path for path in paths if path.is_file()]
    folders = [*(path for path in paths if path not in files), *(runs or ())]
    if len(files) > 1:
        raise InputError(f"{files[1]}: a second table; verify one at a time")
    if files:
        _verify_table(files[0], folders, placement, as_json)
        return
    for option, value in (("--placement", placement), ("--runs", runs)):
        if value is not None:
            raise InputError(f"{option}: is of an allowance table; none was named")
    from routing.stages.verify import verify as verify_stage

    answer = verify_stage(folders, batch_sizes=BATCH_SIZES)
    warn(answer.warnings)
    print_answer({"rows": answer.rows}, as_json, lambda body: _show("counted again without SQL", body["rows"]))
    if answer.failure is not None:
        raise answer.failure


def repair(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is damaged; move and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move what is damaged into RUN/damaged, so that the next `routing measure` or `import` makes just that again."""
    from routing.stages.repair import repair as repair_stage

    answer = repair_stage(run, dry_run=dry_run)
    warn(answer.warnings)
    print_answer(answer.body, as_json, _show_repair)


def _verify_table(table: Path, folders: list[Path], placement: str | None, as_json: bool) -> None:
    from routing.stages.verify_table import verify_table
    from routing.store.placements import find_placement

    if not folders:
        raise InputError(f"{table}: name the runs that it was fitted from: routing verify {table} --runs RUN")
    answer = verify_table(table, folders, placement=None if placement is None else find_placement(placement))
    warn(answer.warnings)
    print_answer({"rows": answer.rows}, as_json, lambda body: _show("fitted again, and counted without SQL", body["rows"]))
    if answer.failure is not None:
        raise answer.failure


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name in _LEFT else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    print_table(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value)
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _show_repair(body: dict[str, Any]) -> None:
    for one in body["damaged"]:
        moved = f" -> {one['moved_to']}" if one["moved_to"] else ""
        say(f"{one['file']}: {one['fault']}{moved}")
    if not body["damaged"]:
        say(f"{body['run']}: nothing is damaged")
    say(f"next: {body['next_step']}")
