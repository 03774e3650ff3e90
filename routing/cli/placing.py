"""The verbs of placements: `placement suggest`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import Json, print_answer, warn
from routing.cli.plain import say
from routing.cli.tables import print_table
from routing.core.errors import CheckFailedError
from routing.core.units import format_size, parse_size

app = typer.Typer(name="placement", help="Which rank owns which expert.", no_args_is_help=True)


@app.callback()
def placement() -> None:
    """Which rank owns which expert."""


@app.command()
def suggest(
    run: Annotated[Path, typer.Argument(help="A run directory that `routing measure` wrote.")],
    ep: Annotated[int, typer.Option("--ep", min=2, help="The expert-parallel size that the placement is for.")],
    batch_tokens: Annotated[str, typer.Option("--batch-tokens", help="The batch size to pack by and to judge at.")] = "200k",
    out: Annotated[Path | None, typer.Option("--out", help="The placement file to write, where it is better.")] = None,
    as_json: Json = False,
) -> None:
    """Pack each layer's experts onto ranks by their rows; say on held-out batches what it would save, exit 1 where nothing."""
    from routing.stages.placement import suggest as suggest_stage

    answer = suggest_stage(run, ep=ep, batch_tokens=parse_size(batch_tokens, name="--batch-tokens"), out=out)
    warn(answer.warnings)
    print_answer(answer.body, as_json, _show)
    if answer.failure is not None:
        raise CheckFailedError(answer.failure)
    if out is not None:
        say(f"{out}: written", err=True)


def _show(body: dict[str, Any]) -> None:
    size = format_size(body["batch_tokens"])
    table = Table(title=f"{body['run']}, EP {body['ep']}, batches of {size} tokens: worst imbalance on held-out halves")
    for name in ("units", "batches", "contiguous", "suggested by the other half", "batches that are worse"):
        table.add_column(name, justify="right")
    for half in body["held_out"]:
        worst = f"{half['contiguous']:.4f}", f"{half['suggested']:.4f}"
        table.add_row(str(half["num_units"]), str(half["num_batches"]), *worst, str(half["num_worse"]))
    print_table(table)
    before, after = body["contiguous"], body["suggested"]
    own = f"{before['own_worst']:.4f} contiguous, {after['own_worst']:.4f} suggested"
    say(f"the run's own batches, which it is packed from: {own}")
    word = "saves" if body["saves"] >= 0 else "costs"
    allowed = f"{before['allowance']:g} contiguous, {after['allowance']:g} suggested"
    say(f"allowance by {before['method']} over all of these: {allowed}; {word} {abs(body['saves']):g}")
