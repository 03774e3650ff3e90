"""Fitted without a part of the counts, then held against that part: half of the units both ways, each stratum, each policy.

The rule is the one of the fit, applied to what is left, over fewer pools. Where too little is left for `strat-boot` it is
`headroom-v1`, and the answer says so.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from routing.core.coverage import HELD_OUT
from routing.core.judgement import HeldOut, HeldOutBatch
from routing.core.observed import BatchWorst, MeasuredRun
from routing.fit import headroom, strat_boot
from routing.fit.counts import Counts
from routing.fit.recut import RealBatches, real_batches
from routing.fit.resample import JUDGED_POOLS, Levels
from routing.fit.steps import Place, Raw, stepped
from routing.fit.strat_boot import Resampled, is_enough, resample

NUM_LISTED = 20
MIN_FITTED_BATCHES = 2
Kind = Literal["units", "policy", "stratum"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Raw bounds by (batch tokens, EP size), and the method of each batch size."""

    raws: Mapping[Place, Raw]
    methods: Mapping[int, str]


def judged_halves(
    run: MeasuredRun, counts: Counts, *, sizes: Sequence[int], eps: Sequence[int]
) -> Iterator[tuple[Place, HeldOut]]:
    """Each half of the run's units held against the fit on the other half; nothing for a size that a half can't be fitted at."""
    halves = [counts.of_units(names) for names in halves_of(counts.units, run.content_hash or "")]
    if not all(len(half.segment_ids) for half in halves):
        return
    for fitted_half, other in (halves, halves[::-1]):
        fitted = _fit(run, fitted_half, sizes=sizes, eps=eps)
        part = f"{len(other.units)} of {len(counts.units)} units, fitted on the other {len(fitted_half.units)}"
        batches = {size: real_batches(other, batch_tokens=size, eps=eps) for size in sizes}
        yield from hold(run, fitted, {size: batches[size] for size in sizes}, kind="units", part=part)


def judged_strata(
    run: MeasuredRun, counts: Counts, levels: Mapping[int, Resampled], *, eps: Sequence[int]
) -> Iterator[tuple[Place, HeldOut]]:
    """Each stratum of the run held against the fit on its others; nothing at a size that no batch of the stratum fills.

    `levels` are the run's own by batch size: what they say inside each of the others holds without the one left out, too.
    Strata may hold the same units (other agents at the same tasks), which stay in the fit.
    """
    names = counts.strata if len(counts.strata) > 1 else ()
    for name in names:
        left_out, others = counts.of_strata(frozenset([name])), counts.of_strata(frozenset(names) - {name})
        batches = {size: real_batches(left_out, batch_tokens=size, eps=eps) for size in levels}
        held = {size: found for size, found in batches.items() if found.num_batches}
        known = {size: levels[size].strata for size in held}
        fitted = _fit(run, others, sizes=tuple(held), eps=eps, known=known)
        yield from hold(run, fitted, held, kind="stratum", part=f"stratum {name}")


def halves_of(names: frozenset[str], content_hash: str) -> tuple[frozenset[str], frozenset[str]]:
    """Every second unit in an order that the run's own hash gives."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(f"{content_hash}:{name}".encode()).hexdigest())
    return frozenset(ordered[::2]), frozenset(ordered[1::2])


def hold(
    run: MeasuredRun, fitted: Fitted, batches: Mapping[int, RealBatches], *, kind: Kind, part: str
) -> Iterator[tuple[Place, HeldOut]]:
    """Every fitted place against the held-out batches of its size, counted exactly."""
    allowed = stepped(fitted.raws, num_experts=run.shape.num_experts, top_k=run.shape.top_k)
    for (size, ep), one in allowed.items():
        worsts = batches[size].worsts(ep)
        above = [worst for worst in worsts if worst.imbalance(ep) > Fraction(one.allowance)]
        above.sort(key=lambda worst: (-worst.imbalance(ep), worst.batch))
        largest = max(worsts, key=lambda worst: (worst.imbalance(ep), -worst.batch), default=None)
        yield (
            (size, ep),
            HeldOut(
                kind=kind,
                run=run.run,
                label=run.label,
                part=part,
                method=fitted.methods[size],
                allowance=one.allowance,
                num_batches=len(worsts),
                num_above=len(above),
                worst=None if largest is None else largest.decimal(ep),
                above=tuple(_listed(worst, ep) for worst in above[:NUM_LISTED]),
            ),
        )


def held_out_sentence(one: HeldOut, *, ep: int, batch_tokens: int) -> str:
    """What the held-out batches say; validated only where none of them is above."""
    what = f"{one.label}{HELD_OUT}as a policy" if one.kind == "policy" else f"{one.label}{HELD_OUT}{one.part}"
    said = (
        f"{one.num_above} of {one.num_batches} batches of {batch_tokens} tokens above {one.allowance} at EP {ep} ({one.method})"
    )
    return f"{what}: {said}{'; not validated' if one.num_above else ''}."


def _fit(
    run: MeasuredRun,
    counts: Counts,
    *,
    sizes: Sequence[int],
    eps: Sequence[int],
    known: Mapping[int, Mapping[str, Levels]] = MappingProxyType({}),
) -> Fitted:
    raws: dict[Place, Raw] = {}
    methods: dict[int, str] = {}
    for size in sizes:
        seen = real_batches(counts, batch_tokens=size, eps=eps)
        if seen.num_batches < MIN_FITTED_BATCHES:
            continue
        if is_enough(seen.num_batches, counts):
            methods[size] = strat_boot.METHOD
            levels = resample(
                counts,
                batch_tokens=size,
                eps=eps,
                by_layer=False,
                content_hash=run.content_hash or "",
                num_pools=JUDGED_POOLS,
                known=known.get(size, {}),
            )
            found = {ep: levels.bound(ep, None) for ep in eps}
        else:
            methods[size] = headroom.METHOD
            found = {ep: headroom.headroom_bound(seen.worst(ep)) for ep in eps}
        for ep in eps:
            raws[size, ep] = max(found[ep], Raw(value=seen.worst(ep), binds="observed"), key=lambda raw: raw.value)
    return Fitted(raws=raws, methods=methods)


def _listed(worst: BatchWorst, ep: int) -> HeldOutBatch:
    return HeldOutBatch(batch=worst.batch, layer=worst.layer, rank=worst.rank, imbalance=worst.decimal(ep))
