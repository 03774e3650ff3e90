"""A better placement of experts from counts, by greedy packing, and what it does on batches that it was not made from.

The experts of a layer, the heaviest first, go each to the rank with the least rows that still has room for one: every rank ends
with E / n of them. Published: DeepSeek-V3 technical report (arXiv 2412.19437, 3.4) and EPLB's balanced packing, without their
redundant experts. Weights are rows over full batches; no batch, layer or rank is looked at by itself.

Letters: B batches, E experts, L MoE layers, R ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from routing.core.placement import CONTIGUOUS, LayerPlacement, Placement, PlacementFile
from routing.fit.counts import Counts, Floats, Integers
from routing.fit.judge import halves_of
from routing.fit.recut import batch_loads

METHOD = "greedy packing (DeepSeek-V3, EPLB), no redundant experts"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutPlacements:
    """Full batches of one half of the units, under contiguous blocks and under what the other half suggests.

    `contiguous` and `suggested` are each one's largest imbalance; `num_worse` batches have a larger one under the suggestion.
    """

    num_units: int
    num_batches: int
    num_worse: int
    contiguous: Fraction
    suggested: Fraction


def pack(rows_E: Floats, ep: int) -> tuple[int, ...]:
    """The rank of every expert; the smallest expert and the smallest rank of equals."""
    room = [len(rows_E) // ep] * ep
    filled = [0.0] * ep
    ranks = [0] * len(rows_E)
    for expert in np.argsort(-rows_E, kind="stable").tolist():
        rank = min((one for one in range(ep) if room[one]), key=lambda one: (filled[one], one))
        ranks[expert] = rank
        filled[rank] += float(rows_E[expert])
        room[rank] -= 1
    return tuple(ranks)


def suggested(loads_BEL: Floats, layers: Sequence[int], ep: int) -> PlacementFile:
    """Every layer packed by its rows over these batches."""
    rows_EL = loads_BEL.sum(axis=0)
    return PlacementFile(
        ep=ep,
        layers=tuple(LayerPlacement(layer=layer, ranks=pack(rows_EL[:, place], ep)) for place, layer in enumerate(layers)),
    )


def worsts(loads_BEL: Floats, layers: Sequence[int], ep: int, placement: Placement) -> tuple[Fraction, ...]:
    """Of every batch the largest imbalance over layers, exact."""
    busiest_BL = np.empty(loads_BEL.shape[::2])
    for place, layer in enumerate(layers):
        ranks_E: Integers = np.array(placement.ranks(layer, ep=ep, num_experts=loads_BEL.shape[1]))
        owned_ER = (ranks_E[:, None] == np.arange(ep)).astype(np.float64)
        busiest_BL[:, place] = (loads_BEL[:, :, place] @ owned_ER).max(axis=1)
    rows_BL = loads_BEL.sum(axis=1)
    at_B = (busiest_BL / rows_BL).argmax(axis=1)
    chosen = zip(np.arange(len(at_B)).tolist(), at_B.tolist(), strict=True)
    return tuple(Fraction(int(busiest_BL[batch, at]) * ep, int(rows_BL[batch, at])) for batch, at in chosen)


def judged_placements(counts: Counts, *, batch_tokens: int, ep: int, content_hash: str) -> tuple[HeldOutPlacements, ...]:
    """Each half of the units under what the other half suggests; none where a half has no full batch.

    The blocks of `counts` are single experts.
    """
    halves = [counts.of_units(names) for names in halves_of(counts.units, content_hash)]
    loads = [batch_loads(half, batch_tokens=batch_tokens) for half in halves if len(half.segment_ids)]
    if len(loads) < len(halves) or not all(map(len, loads)):
        return ()
    found = []
    for half, mine_BEL, other_BEL in zip(halves, loads, loads[::-1], strict=True):
        file = suggested(other_BEL, counts.layers, ep)
        now = worsts(mine_BEL, counts.layers, ep, CONTIGUOUS)
        then = worsts(mine_BEL, counts.layers, ep, Placement(kind="file", file=file))
        found.append(
            HeldOutPlacements(
                num_units=len(half.units),
                num_batches=len(now),
                num_worse=sum(b > a for a, b in zip(now, then, strict=True)),
                contiguous=max(now),
                suggested=max(then),
            )
        )
    return tuple(found)
