"""`routing placement suggest`: a finished run in, a placement of experts and what it would save out, told on held-out batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.core.placement import CONTIGUOUS, Placement, require_ep_size
from routing.fit.counts import Counts
from routing.fit.headroom import METHOD as HEADROOM_METHOD
from routing.fit.headroom import headroom_allowances
from routing.fit.packing import METHOD, HeldOutPlacements, judged_placements, suggested, worsts
from routing.fit.recut import batch_loads
from routing.query.imbalance import tabulated
from routing.query.loads import segment_loads
from routing.stages.imbalance import as_lines
from routing.store.content import require_content
from routing.store.placements import write_placement
from routing.store.run import open_run


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestAnswer:
    """`body` as `--json` gives it; `failure` where the suggestion is no better than contiguous blocks on held-out batches."""

    body: dict[str, Any]
    warnings: tuple[str, ...]
    failure: str | None


def suggest(folder: Path, *, ep: int, batch_tokens: int, out: Path | None) -> SuggestAnswer:
    """Packs by all of the run's batches, judges by halves of its units, and writes `out` only where the judgement is for it.

    For it means: the largest imbalance over the held-out batches of both halves is smaller than under contiguous blocks. The
    allowance that it would save is of the largest over these and the run's own batches: an odd batch may lie in neither half.
    """
    run = open_run(folder)
    require_content(run)
    shape = run.manifest.shape
    require_ep_size(ep, shape.num_experts)
    with tabulated(run, eps=(shape.num_experts,), batch_sizes=(batch_tokens,), view="packed", order="corpus") as tables:
        counts = Counts(**segment_loads(tables, eps=(shape.num_experts,), layers=shape.moe_layers))
        warnings = [*run.notices, *as_lines(tables.cautions)]
    held_out = judged_placements(counts, batch_tokens=batch_tokens, ep=ep, content_hash=run.manifest.content_hash or "")
    if not held_out:
        raise InputError(f"{folder}: half of the units fill no batch of {batch_tokens} tokens to judge by; ask for smaller ones")
    loads_BEL = batch_loads(counts, batch_tokens=batch_tokens)
    placement = Placement(kind="file", file=suggested(loads_BEL, counts.layers, ep))
    sizes = {"num_experts": shape.num_experts, "top_k": shape.top_k}
    own = {
        name: max(worsts(loads_BEL, counts.layers, ep, one), default=Fraction(1))
        for name, one in (("contiguous", CONTIGUOUS), ("suggested", placement))
    }
    before, after = (_allowed(held_out, name, own[name], ep, **sizes) for name in own)
    is_better = after["held_out_worst"] < before["held_out_worst"]
    body = {
        "run": run.name,
        "ep": ep,
        "batch_tokens": batch_tokens,
        "method": METHOD,
        "placement": placement.name,
        "held_out": [_half(one) for one in held_out],
        "contiguous": before,
        "suggested": after,
        "saves": round(before["allowance"] - after["allowance"], 2),
        "is_better": is_better,
        "written": str(out) if out is not None and is_better else None,
    }
    if out is not None and is_better and placement.file is not None:
        write_placement(out, placement.file)
    failure = None if is_better else _failure(folder, body)
    return SuggestAnswer(body=body, warnings=tuple(dict.fromkeys(warnings)), failure=failure)


def _allowed(
    held_out: Sequence[HeldOutPlacements], name: str, own: Fraction, ep: int, *, num_experts: int, top_k: int
) -> dict[str, Any]:
    """The largest over both halves, that of the run's own batches, and what `headroom-v1` allows for the larger."""
    worst: Fraction = max(getattr(one, name) for one in held_out)
    allowed = headroom_allowances({ep: max(worst, own)}, num_experts=num_experts, top_k=top_k)[ep]
    seen = {"held_out_worst": float(worst), "own_worst": float(own)}
    return seen | {"allowance": float(allowed.allowance), "method": HEADROOM_METHOD}


def _half(one: HeldOutPlacements) -> dict[str, Any]:
    return {
        "num_units": one.num_units,
        "num_batches": one.num_batches,
        "num_worse": one.num_worse,
        "contiguous": float(one.contiguous),
        "suggested": float(one.suggested),
    }


def _failure(folder: Path, body: dict[str, Any]) -> str:
    worst, than = body["suggested"]["held_out_worst"], body["contiguous"]["held_out_worst"]
    return (
        f"{folder}: on held-out batches the suggested placement's worst {worst:.4f} is not below contiguous {than:.4f}; "
        "nothing written, keep contiguous"
    )
