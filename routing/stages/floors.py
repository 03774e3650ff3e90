"""Observations from outside the runs as floors of a fit: what a guard logged while a trainer ran."""

from collections.abc import Sequence
from pathlib import Path

from routing.core.allowance import Floor, proven_ceiling
from routing.core.errors import InputError
from routing.core.exceedance import Exceedance
from routing.core.shapes import ModelShape
from routing.store.guard_log import read_exceedances


def read_floors(paths: Sequence[Path], *, shape: ModelShape, placement: str, eps: Sequence[int]) -> dict[int, tuple[Floor, ...]]:
    """The floors by EP size: of every layer and batch size of the table that was passed the largest, the first of equals.

    InputError for a log of another model, placement or EP size than the fit's, and for tokens or an imbalance that can't be.
    """
    largest: dict[tuple[int, int, int], tuple[Exceedance, Floor]] = {}
    for path in paths:
        found = read_exceedances(path)
        if not found:
            raise InputError(f"--floor: {path} holds no line; a guard that saw nothing exceeded writes none")
        for one in found:
            _require_same(one, path, shape=shape, placement=placement, eps=eps)
            place = (one.ep, one.layer, one.allowance_batch_tokens)
            if place not in largest or one.ratio > largest[place][0].ratio:
                largest[place] = one, one.floor(path.name)
    return {ep: tuple(floor for (of, _, _), (_, floor) in sorted(largest.items()) if of == ep) for ep in eps}


def _require_same(one: Exceedance, path: Path, *, shape: ModelShape, placement: str, eps: Sequence[int]) -> None:
    where = f"--floor: {path}: layer {one.layer} at step {one.step}"
    if one.shape_hash != shape.shape_hash or one.layer not in shape.moe_layers:
        raise InputError(f"{where}: of another model than these runs (shape {one.shape_hash[:12]})")
    if one.placement != placement:
        raise InputError(f"{where}: of placement {one.placement}, the fit is of {placement}")
    if one.ep not in eps:
        asked = ",".join(str(ep) for ep in sorted({*eps, one.ep}))
        raise InputError(f"{where}: of EP {one.ep}, which is not fitted; --ep {asked}")
    tokens = max(one.routed_rows // shape.top_k, 1)
    if one.batch_tokens != tokens:
        what = f"{one.routed_rows} rows of top-{shape.top_k} are {tokens} tokens, not {one.batch_tokens}"
        raise InputError(f"{where}: batch_tokens: {what}; take the log as the guard wrote it")
    ceiling, reason = proven_ceiling(one.ep, num_experts=shape.num_experts, top_k=shape.top_k)
    if one.ratio > ceiling:
        raise InputError(f"{where}: imbalance {one.imbalance} can't be, the ceiling is {reason}")
