"""The verbs that look an allowance up and say what it costs: `allowance` and `explain`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from routing.cli.common import Allowances, Json, print_answer, warn
from routing.cli.plain import say
from routing.cli.tables import print_table
from routing.core.units import format_gb, format_size, parse_size


def allowance(
    ep: Annotated[int, typer.Option("--ep", min=2, help="Expert-parallel size.")],
    batch_tokens: Annotated[str, typer.Option("--batch-tokens", help="Tokens that the EP group dispatches together, as 200k.")],
    layer: Annotated[int | None, typer.Option("--layer", min=0, help="One MoE layer, at its own entry where it has one.")] = None,
    allowances: Allowances = None,
    stack: Annotated[
        str | None, typer.Option("--for", help="automodel, megatron-core or torchtitan: its capacity factor, in its units.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The allowance for a dispatch, and the capacity factor that another stack expects for it."""
    from routing.stages.allowance import allowance as allowance_stage

    tokens = parse_size(batch_tokens, name="--batch-tokens")
    answer = allowance_stage(allowances, ep=ep, batch_tokens=tokens, layer=layer, stack=stack)
    warn(answer.warnings)
    print_answer(answer.body, as_json, _show_allowance)


def explain(
    table: Annotated[Path, typer.Argument(help="An allowance table that `routing fit` wrote.", metavar="ALLOWANCES")],
    wave: Annotated[Path, typer.Option("--wave", help="The wave to price with it, YAML or JSON.")],
    as_json: Json = False,
) -> None:
    """Which entry prices a wave, what it rests on, and how many tokens a tighter one would admit in the same bytes."""
    from routing.stages.allowance import explain as explain_stage

    answer = explain_stage(table, wave_path=wave)
    warn(answer.warnings)
    print_answer(answer.body, as_json, _show_explained)


def _show_allowance(body: dict[str, Any]) -> None:
    entry = body["entry"]
    say(f"allowance {body['allowance']:g}: {body['model']}, EP {body['ep']}, {body['placement']} placement")
    where = f"batches from {format_size(entry['batch_tokens'])} tokens, layer {entry['layer']}"
    say(f"entry: {where}; {entry['status']}, {entry['binds']} binds; only {body['proven_ceiling']:g} is proven")
    capacity = body.get("capacity")
    if capacity is not None:
        say(f"{capacity['stack']}: {capacity['option']} = {capacity['factor']:g}")
        say(f"  {capacity['setting']}")
        for note in capacity["notes"]:
            say(f"- {note}")


def _show_explained(body: dict[str, Any]) -> None:
    entry = body["entry"]
    where = f"EP {entry['ep']}, batches from {format_size(entry['batch_tokens'])} tokens, layer {entry['layer']}"
    seen = "nothing of it was counted" if entry["observed_max"] is None else f"the largest seen is {entry['observed_max']:g}"
    observed = body["seen_with_margin"]
    if observed is None:
        say(f"{body['wave']}: priced at {entry['allowance']:g} ({where}; {entry['status']})")
        say(f"{entry['binds']} binds; {seen}")
    else:
        say(f"{body['wave']}: priced at {observed:g}: its observed share and the margin bind, not the entry")
        say(f"entry {entry['allowance']:g} ({where}; {entry['status']}): {entry['binds']} binds; {seen}")
    for floor in entry["floors"]:
        say(f"- floor {floor['value']:g}: {floor['source']}")
    required = body["required_bytes"]
    table = Table(title=f"tokens in {required:,} bytes ({format_gb(required)}), even over the ranks, one packed group")
    for name in ("allowance", "tokens", "more", "by evidence alone"):
        table.add_column(name, justify="right")
    for row in body["admits"]:
        can = "can be" if row["is_open_to_evidence"] else "no: seen or floored above"
        table.add_row(f"{row['allowance']:g}", f"{row['tokens']:,}", f"{row['more']:+,}", can)
    print_table(table)
    least = body["least_by_evidence"]
    more = next((row["more"] for row in reversed(body["admits"]) if row["is_open_to_evidence"]), 0)
    if observed is not None:
        say("a tighter entry changes nothing: the observed share would bind all the same")
    elif least < entry["allowance"]:
        say(f"more batches can lower it to {least:g} at most, {more:,} tokens more; whether they would, nobody knows")
    else:
        say("more batches can't lower it: what was seen, or a floor, rounds up to it")
    for sentence in body["coverage"]:
        say(f"- {sentence}")
