"""Two policies' layers side by side: how far each layer's imbalance differs, and whether drawing other units would undo it.

A run's packed tokens are taken as one batch here, which says where routing moved; the worst of small batches lies above it. The
interval is over units drawn whole with replacement. Runs of one corpus hold the same units, so that one draw serves both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from routing.fit.counts import Counts, Floats, Integers

NUM_DRAWS = 400
INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerDifference:
    """One layer at one EP size: both imbalances over the whole run, other minus base, and its 95% interval."""

    ep: int
    layer: int
    base: float
    other: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Above 0 where the other policy is less even."""
        return self.other - self.base

    @property
    def is_beyond(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def layer_differences(base: Counts, other: Counts, *, eps: Sequence[int], seeds: tuple[int, int]) -> Iterator[LayerDifference]:
    """Of every EP size and layer that both have; the same two seeds pair the draws, which is for runs of one corpus."""
    drawn = [drawn_imbalances(one, eps=eps, seed=seed) for one, seed in zip((base, other), seeds, strict=True)]
    differences_DNL = drawn[1] - drawn[0]
    low_NL, high_NL = np.quantile(differences_DNL[1:], INTERVAL, axis=0)
    for place, ep in enumerate(eps):
        for at, layer in enumerate(base.layers):
            yield LayerDifference(
                ep=ep,
                layer=layer,
                base=float(drawn[0][0, place, at]),
                other=float(drawn[1][0, place, at]),
                low=float(low_NL[place, at]),
                high=float(high_NL[place, at]),
            )


def drawn_imbalances(counts: Counts, *, eps: Sequence[int], seed: int) -> Floats:
    """Imbalances [draw, EP size, layer]; the first is of the units themselves, NUM_DRAWS of units drawn with replacement."""
    own_UX, holds_US, shared_SX = _by_unit(counts)
    num_units = len(own_UX)
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=NUM_DRAWS)
    times_DU = np.concatenate([np.ones((1, num_units)), draws])
    loads_DX = times_DU @ own_UX + ((times_DU @ holds_US) > 0).astype(np.float64) @ shared_SX
    num_blocks, num_layers = counts.loads_SBL.shape[1:]
    loads_DBL = loads_DX.reshape(-1, num_blocks, num_layers)
    rows_DL = loads_DBL.sum(axis=1)
    ranks = (loads_DBL.reshape(len(loads_DBL), ep, num_blocks // ep, num_layers).sum(axis=2) for ep in eps)
    return np.stack([one.max(axis=1) * ep / rows_DL for ep, one in zip(eps, ranks, strict=True)], axis=1)


def _by_unit(counts: Counts) -> tuple[Floats, sparse.csr_array, Floats]:
    """(loads of each unit's own segments, which shared segments a unit holds, their loads); a shared segment counts once."""
    loads_SX = counts.loads_SBL.reshape(len(counts.loads_SBL), -1)
    units: Integers
    segments, units = np.unique(np.stack([counts.segment_ids, counts.units_T[counts.trajectory_ids]]), axis=1)
    places, num_holders = np.unique(segments, return_inverse=True, return_counts=True)[1:]
    present, unit_U = np.unique(units, return_inverse=True)
    is_own = num_holders[places] == 1
    own_UX = np.zeros((len(present), loads_SX.shape[1]))
    np.add.at(own_UX, unit_U[is_own], loads_SX[segments[is_own]])
    shared, column = np.unique(segments[~is_own], return_inverse=True)
    ones = np.ones(len(column))
    holds_US = sparse.csr_array((ones, (unit_U[~is_own], column)), shape=(len(present), len(shared)))
    return own_UX, holds_US, loads_SX[shared]
