"""The batches that counts hold in their own order, cut again: of a half of the units, of one stratum, of one layer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from routing.core.observed import BatchWorst
from routing.fit.counts import Counts, Floats, Integers, rank_loads
from routing.fit.layout import lay_out, window_ends, window_parts


@dataclass(frozen=True, kw_only=True, slots=True)
class RealBatches:
    """B full batches, N EP sizes, L layers: routed rows of the busiest rank, which rank (0-based), rows over all ranks."""

    eps: tuple[int, ...]
    layers: tuple[int, ...]
    num_batches: int
    busiest_BNL: Floats
    rank_BNL: Integers
    rows_BL: Floats

    def worsts(self, ep: int, layer: int | None = None) -> tuple[BatchWorst, ...]:
        """Of every batch the worst of all layers, the first of equals, or that of one layer."""
        place = self.eps.index(ep)
        ratios_BL = self.busiest_BNL[:, place] * ep / self.rows_BL
        chosen = ratios_BL.argmax(axis=1) if layer is None else np.full(self.num_batches, self.layers.index(layer))
        return tuple(
            BatchWorst(
                batch=batch,
                layer=self.layers[at],
                rank=int(self.rank_BNL[batch, place, at]),
                busiest_rows=int(self.busiest_BNL[batch, place, at]),
                routed_rows=int(self.rows_BL[batch, at]),
            )
            for batch, at in enumerate(chosen.tolist())
        )

    def worst(self, ep: int, layer: int | None = None) -> Fraction:
        """The largest imbalance of any batch, exact; 1 without a batch."""
        return max((one.imbalance(ep) for one in self.worsts(ep, layer)), default=Fraction(1))


def real_batches(counts: Counts, *, batch_tokens: int, eps: Sequence[int]) -> RealBatches:
    """The packed view's batches in the order of the counts; what is left below the size is dropped."""
    loads_KBL = np.moveaxis(batch_loads(counts, batch_tokens=batch_tokens), 0, 1)
    ranks = [rank_loads(loads_KBL, ep, is_strided=counts.is_strided) for ep in eps]
    return RealBatches(
        eps=tuple(eps),
        layers=counts.layers,
        num_batches=loads_KBL.shape[1],
        busiest_BNL=np.stack([loads.max(axis=0) for loads in ranks], axis=1),
        rank_BNL=np.stack([loads.argmax(axis=0) for loads in ranks], axis=1),
        rows_BL=loads_KBL.sum(axis=0),
    )


def batch_loads(counts: Counts, *, batch_tokens: int) -> Floats:
    """Routed rows of every full batch [batch, block, layer], in the order of the counts."""
    whole = replace(counts, units_T=np.zeros_like(counts.units_T), unit_names=("all",))
    layout = lay_out(whole)
    ends_P = window_ends(layout, batch_tokens)
    chosen_P = np.full_like(ends_P, -1)
    start = 0
    while start < len(ends_P) and ends_P[start] >= 0:
        chosen_P[start] = ends_P[start]
        start = int(ends_P[start])
    parts = window_parts(layout, chosen_P, num_segments=len(counts.loads_SBL))
    loads_BX = np.asarray(parts @ counts.loads_SBL.reshape(len(counts.loads_SBL), -1))
    return loads_BX.reshape(-1, *counts.loads_SBL.shape[1:])
