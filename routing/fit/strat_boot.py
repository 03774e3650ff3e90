"""`strat-boot-v3`: the level that a batch passes once in a thousand, over resampled units, and the same inside each stratum.

    H   = the upper end of the level's 95% interval, over the mix of all strata
    S   = the largest such end inside one stratum with enough units and tokens: batches that come from there alone
    R   = a loop that repeats one piece of text (`repeated`)
    raw = max(H, S, R, observed max, floors), over policies

Units are what moves together, and most of the variance is between them, so they are resampled whole. R is for trajectories
unlike any of these, which no law fitted to them knows of: without it (`strat-boot-v1`) more than 0.1% of fresh batches were above
in four of six places. What it leaves out: policies and strata that nobody measured.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from routing.core.allowance import Parameter
from routing.core.judgement import Level
from routing.core.observed import MeasuredRun
from routing.fit import gumbel, repeated
from routing.fit.counts import Counts
from routing.fit.repeated import Repeated
from routing.fit.resample import JUDGED_POOLS, NUM_BATCHES, NUM_POOLS, Levels, resampled_levels
from routing.fit.steps import Raw

METHOD = "strat-boot-v3"
RESAMPLED: dict[str, Parameter] = {
    "resampled_batches": NUM_BATCHES,
    "resampled_pools": NUM_POOLS,
    "resampled_pools_of_held_out_fits": JUDGED_POOLS,
    "level_passed_with_probability": Decimal(repr(gumbel.PASSED)),
    "interval": Decimal(repr(gumbel.INTERVAL)),
    "repeated_text_beyond_share_a_trajectory": repeated.BEYOND,
    "repeated_text_beyond_share_at_most": repeated.MOST_BEYOND,
    "repeated_text_headroom": repeated.HEADROOM,
    "repeated_text_length": repeated.LENGTH,
}
MIN_BATCHES, MIN_UNITS = 10, 20  # below either, evidence is low


@dataclass(frozen=True, kw_only=True, slots=True)
class Resampled:
    """One run's levels at one batch size: of the mix, of every stratum that has enough, and which strata have not.

    `num_trajectories` are those that they rest on.
    """

    eps: tuple[int, ...]
    layers: tuple[int, ...]
    mix: Levels
    strata: Mapping[str, Levels]
    thin_strata: tuple[str, ...]
    num_trajectories: int
    repeated: Repeated

    def bound(self, ep: int, layer: int | None) -> Raw:
        """The largest of H, S and R; `binds` is `resampled`, `stratum NAME` or `repeated text`. No layer is the worst of all."""
        place = self._place(ep, layer)
        mix = _exact(self.mix.high_NC[place])
        bounds = [Raw(value=mix, binds="resampled")]
        bounds += [Raw(value=_exact(self.strata[name].high_NC[place]), binds=f"stratum {name}") for name in sorted(self.strata)]
        bounds.append(Raw(value=self.repeated.bound(place, mix), binds="repeated text"))
        return max(bounds, key=lambda raw: raw.value)

    def repeated_text(self, ep: int) -> Fraction:
        """What repeated text is taken to show in its worst layer."""
        return self.repeated.text(self._place(ep, None))

    def level(self, run: MeasuredRun, ep: int, layer: int | None) -> Level:
        """What the mix says."""
        return self._level(run, None, self.mix, self._place(ep, layer))

    def stress(self, run: MeasuredRun, ep: int, layer: int | None) -> Level | None:
        """What the stratum with the largest upper end says, the first by name of equals; None without one."""
        place = self._place(ep, layer)
        name = max(sorted(self.strata), key=lambda one: float(self.strata[one].high_NC[place]), default=None)
        return None if name is None else self._level(run, name, self.strata[name], place)

    def _place(self, ep: int, layer: int | None) -> tuple[int, int]:
        return self.eps.index(ep), 0 if layer is None else 1 + self.layers.index(layer)

    def _level(self, run: MeasuredRun, stratum: str | None, found: Levels, place: tuple[int, int]) -> Level:
        values = (Decimal(repr(float(ends[place]))) for ends in (found.estimate_NC, found.low_NC, found.high_NC))
        estimate, low, high = values
        return Level(run=run.run, label=run.label, stratum=stratum, estimate=estimate, low=low, high=high)


def seed_of(content_hash: str, stratum: str | None = None) -> int:
    """A run's own seed, 53 bits as JSON readers keep them: the same counts are resampled the same way everywhere."""
    text = content_hash if stratum is None else f"{content_hash}:{stratum}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11


def is_enough(num_batches: int, counts: Counts) -> bool:
    """Whether these counts carry the rule: enough full batches and units."""
    return num_batches >= MIN_BATCHES and len(counts.own_units) >= MIN_UNITS


def resample(
    counts: Counts,
    *,
    batch_tokens: int,
    eps: Sequence[int],
    by_layer: bool,
    content_hash: str,
    num_pools: int | None = None,
    known: Mapping[str, Levels] = MappingProxyType({}),
) -> Resampled:
    """The levels of counts that are enough. With a single stratum there is no stress: the mix is that stratum.

    `known` are levels of whole strata that these counts hold too, made with the same hash.
    """
    asked = partial(resampled_levels, batch_tokens=batch_tokens, eps=tuple(eps), by_layer=by_layer, num_pools=num_pools)
    strata: dict[str, Levels] = {}
    thin = []
    for name in counts.strata if len(counts.strata) > 1 else ():
        part = counts.of_strata(frozenset([name]))
        if len(part.own_units) < MIN_UNITS or part.num_tokens_packed < batch_tokens:
            thin.append(name)
        else:
            strata[name] = known[name] if name in known else asked(part, seed=seed_of(content_hash, name))
    return Resampled(
        eps=tuple(eps),
        layers=counts.layers,
        mix=asked(counts, seed=seed_of(content_hash)),
        strata=strata,
        thin_strata=tuple(thin),
        num_trajectories=counts.num_trajectories,
        repeated=repeated.repeated_text(counts, batch_tokens=batch_tokens, eps=eps, by_layer=by_layer),
    )


def _exact(value: float) -> Fraction:
    """A level has nine decimals; its float is not quite that."""
    return Fraction(repr(float(value)))
