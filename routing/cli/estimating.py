"""The verbs that price memory: `estimate`, `wave`, `replay`."""

from pathlib import Path
from typing import Annotated

import typer

from routing.cli.common import Allowances, Json, Placed, print_answer, warn
from routing.cli.plain import say
from routing.core.errors import CheckFailedError, InputError
from routing.core.placement import PLACEMENT
from routing.core.units import BYTES_PER_GB, parse_number

WaveFile = Annotated[Path, typer.Argument(help="A wave, YAML or JSON, as a planner recorded it or `routing wave` laid it out.")]
Model = Annotated[str | None, typer.Option("--model", help="A bundled model or a config.json, instead of the wave's model.")]


def estimate(
    wave: WaveFile,
    allowances: Allowances = None,
    model: Model = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="The total is the walk, each layer at its own allowance.")
    ] = False,
    mode: Annotated[
        str, typer.Option("--mode", help="fitted: the table's allowances; proven: min(EP, experts / top-k).")
    ] = "fitted",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse rows below the smallest fitted batch.")] = False,
    lower_by_observed: Annotated[
        bool, typer.Option("--lower-by-observed", help="Let routing that the wave has seen lower an allowance.")
    ] = False,
    outside_bytes: Annotated[
        int, typer.Option("--outside-bytes", min=0, help="Known growth outside PyTorch, added to what is required.")
    ] = 0,
    placement: Placed = PLACEMENT,
    budget_gb: Annotated[
        str | None, typer.Option("--budget-gb", help="Exit 1 where required bytes exceed this; GB = 1e9 bytes.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare with a measured peak.")] = False,
    peak_bytes: Annotated[int | None, typer.Option("--peak-bytes", min=1, help="With --compare: the measured peak.")] = None,
    baseline_bytes: Annotated[
        int | None, typer.Option("--baseline-bytes", min=0, help="With --compare: bytes allocated before the call.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Price a training step's peak memory above its baseline, by named terms, for the busiest rank."""
    from routing.stages.estimate import Comparison, EstimateRequest
    from routing.stages.estimate import estimate as estimate_stage

    comparison = None
    if compare or peak_bytes is not None or baseline_bytes is not None:
        if not compare or peak_bytes is None or baseline_bytes is None:
            raise InputError("--compare: takes --peak-bytes N and --baseline-bytes N, and they take --compare")
        comparison = Comparison(peak_bytes=peak_bytes, baseline_bytes=baseline_bytes)
    options = {
        "per_layer": per_layer,
        "mode": mode,
        "strict": strict,
        "lower_by_observed": lower_by_observed,
        "outside_bytes": outside_bytes,
    }
    budget = None
    if budget_gb is not None:
        budget = parse_number(budget_gb, name="--budget-gb", of="GB (1e9 bytes)", low="0.000000001", high="1000000000")
    priced = estimate_stage(
        EstimateRequest(
            wave=wave,
            allowances=allowances,
            model=model,
            options=options,
            placement=placement,
            budget_bytes=None if budget is None else int(budget * BYTES_PER_GB),
            comparison=comparison,
        )
    )
    if as_json:
        warn(priced.warnings)  # the table says them itself
    print_answer(priced.body, as_json, lambda _body: say(priced.text))
    if priced.exceeds is not None:
        raise CheckFailedError(priced.exceeds)


def wave(
    lengths: Annotated[Path, typer.Option("--lengths", help="Tokens of each packed sequence, a text file; or a run directory.")],
    model: Annotated[str, typer.Option("--model", help="A bundled model or a config.json.")],
    ep: Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size.")],
    cp: Annotated[int, typer.Option("--cp", min=1, help="Context-parallel size.")],
    adapter_rank: Annotated[
        int | None, typer.Option("--adapter-rank", min=1, help="Rank of LoRA on the experts. Default: no adapter.")
    ] = None,
) -> None:
    """Lay sequences out over the ranks by even share, as a wave file on stdout."""
    from routing.stages.estimate import lay_out

    say(lay_out(lengths, ep=ep, cp=cp, model=model, adapter_rank=adapter_rank), nl=False)


def replay(
    wave: WaveFile,
    recorded: Annotated[Path, typer.Option("--recorded", help="What `routing estimate --json` said of this wave.")],
    allowances: Allowances = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Price a recorded wave again: the same bytes, or exit 1 naming the term that moved."""
    from routing.stages.estimate import replay as replay_stage

    same = replay_stage(wave, recorded=recorded, allowances=allowances, model=model)
    text = f"{same['replayed']}: the same {same['total_bytes']:,} bytes in {same['terms']} terms"
    print_answer(same, as_json, lambda _body: say(text))
