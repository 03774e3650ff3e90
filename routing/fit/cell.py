"""What is known at one EP size and batch size, and the bound that it gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from routing.core.allowance import Floor
from routing.core.observed import MeasuredRun, ObservedWorsts
from routing.fit import strat_boot
from routing.fit.headroom import METHOD as HEADROOM_METHOD
from routing.fit.headroom import headroom_bound
from routing.fit.recut import RealBatches
from routing.fit.steps import Raw
from routing.fit.strat_boot import Resampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Every run's worsts at one EP size and batch size, in the order of the runs, and its levels where they were resampled."""

    runs: tuple[MeasuredRun, ...]
    observed: tuple[ObservedWorsts, ...]
    resampled: tuple[Resampled | None, ...]
    floors: tuple[Floor, ...] = ()
    layer: int | None = None

    @property
    def ep(self) -> int:
        """The EP size of the cell."""
        return self.observed[0].ep

    @property
    def batch_tokens(self) -> int:
        """The batch size of the cell."""
        return self.observed[0].batch_tokens

    @property
    def worst(self) -> Fraction | None:
        """The largest imbalance of any batch of any run, exact; None without a full batch."""
        return max((one.imbalance(self.ep) for worsts in self.observed for one in worsts.worsts), default=None)

    @property
    def is_resampled(self) -> bool:
        """Whether any run's levels are behind the cell."""
        return any(one is not None for one in self.resampled)

    @property
    def method(self) -> str:
        """The rule behind the entry; a policy with too little is judged by its headroom even so."""
        return strat_boot.METHOD if self.is_resampled else HEADROOM_METHOD

    def of_layer(self, layer: int, batches: Sequence[RealBatches]) -> "Cell":
        """One layer's cell, from each run's own batches; a floor without a layer counts for every layer."""
        observed = tuple(
            replace(worsts, worsts=found.worsts(self.ep, layer) if worsts.worsts else (), top_experts=())
            for worsts, found in zip(self.observed, batches, strict=True)
        )
        return replace(
            self, layer=layer, observed=observed, floors=tuple(one for one in self.floors if one.layer in ("all", layer))
        )

    def without_policy(self, weights_sha256: str | None) -> "Cell | None":
        """The cell as if no run of these weights had been measured; None where all are."""
        kept = [place for place, run in enumerate(self.runs) if run.weights_sha256 != weights_sha256]
        if not kept:
            return None
        return Cell(
            runs=tuple(self.runs[place] for place in kept),
            observed=tuple(self.observed[place] for place in kept),
            resampled=tuple(self.resampled[place] for place in kept),
            floors=self.floors,
        )

    @property
    def raw(self) -> Raw:
        """The largest bound of any policy, never below what was seen, nor below a floor. The cell has a batch."""
        bounds = [Raw(value=Fraction(floor.value), binds="floor") for floor in self.floors]
        for worsts, levels in zip(self.observed, self.resampled, strict=True):
            seen = max((one.imbalance(self.ep) for one in worsts.worsts), default=None)
            if levels is not None:
                bounds.append(levels.bound(self.ep, self.layer))
            elif seen is not None:
                bounds.append(headroom_bound(seen))
            if seen is not None:
                bounds.append(Raw(value=seen, binds="observed"))
        return max(bounds, key=lambda one: (one.value, one.binds))

    def levels(self) -> Iterator[tuple[MeasuredRun, Resampled]]:
        """The runs that were resampled."""
        yield from ((run, one) for run, one in zip(self.runs, self.resampled, strict=True) if one is not None)
