"""Which rule holds on fresh batches: every rule fitted on a few batches (17) of measured runs, many times, then counted.

A repetition draws three strata (source files) and splits their units in two. Trajectories of one half, in a random order, fill
those batches: what the rules see. Fresh batches come from the other half, in other orders: of the same strata mixed; of each of
the three alone; of the same mix as another policy routes it; and of the strata that were not drawn. The default rule works on
fewer resampled batches and pools than `routing fit`, so that 200 repetitions end.
"""

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from routing.cli.common import ep_sizes
from routing.core.errors import InputError, RoutingError
from routing.fit import gumbel, resample
from routing.fit.counts import Counts
from routing.fit.headroom import HEADROOM
from routing.fit.recut import RealBatches, real_batches
from routing.fit.repeated import repeated_text
from routing.fit.strat_boot import MIN_BATCHES, MIN_UNITS
from routing.query.imbalance import tabulated
from routing.query.loads import segment_loads
from routing.stages.imbalance import open_distinct
from routing.store.content import require_content

Values = npt.NDArray[np.float64]
EPS = (2, 4, 8)
NUM_FITTED, NUM_STRATA, NUM_ORDERS = 17, 3, 4
TRUE_SHARE = 1 - gumbel.PASSED
RULES = ("observed max", "headroom", "free-shape GEV", "H", "S", "max(H, S)", "R", "default", "default, up to 0.1")
FRESH = ("same mix", "one stratum", "other policy", "other strata")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One repetition of one policy and EP size: each rule's bound (nan: none) and the fresh imbalances by kind."""

    policy: str
    ep: int
    bounds: dict[str, float]
    fresh: dict[str, Values]


def read_counts(folders: Sequence[Path], *, batch_tokens: int, eps: Sequence[int]) -> dict[str, Counts]:
    """By policy label; the runs hold the same steps, which is checked."""
    found: dict[str, Counts] = {}
    for run in open_distinct(folders):
        require_content(run)
        with tabulated(run, eps=eps, batch_sizes=(batch_tokens,), view="packed", order="corpus") as tables:
            found[run.manifest.label] = Counts(**segment_loads(tables, eps=eps, layers=run.manifest.shape.moe_layers))
    first = next(iter(found.values()))
    for label, one in found.items():
        if not np.array_equal(one.segment_ids, first.segment_ids) or one.stratum_names != first.stratum_names:
            raise SystemExit(f"{label}: other trajectories than the first run's; name runs over one corpus")
    return found


def calibrate(
    policies: dict[str, Counts],
    *,
    batch_tokens: int,
    eps: Sequence[int],
    numbers: Iterable[int],
    seed: int,
    num_fitted: int = NUM_FITTED,
) -> Iterator[Outcome]:
    """Repetitions by their numbers. The policies route the same trajectories; one draw serves them all."""
    labels = tuple(policies)
    first = policies[labels[0]]
    num_layers = len(first.layers)
    joined = replace(
        first,
        layers=tuple(range(num_layers * len(labels))),
        loads_SBL=np.concatenate([one.loads_SBL for one in policies.values()], axis=2),
    )
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        drawn, others = _strata(joined, rng)
        names = np.array(sorted(joined.units))
        is_fitted = rng.permutation(len(names)) % 2 == 0
        seen, unseen = (joined.of_units(frozenset(names[half].tolist())) for half in (is_fitted, ~is_fitted))
        sample = _first_batches(in_order(seen.of_strata(drawn), rng), batch_tokens, num_fitted, eps)
        if sample is None:
            continue
        fresh = unseen.of_strata(drawn)
        mixed = [real_batches(in_order(fresh, rng), batch_tokens=batch_tokens, eps=eps) for _ in range(NUM_ORDERS)]
        alone = [
            real_batches(in_order(fresh.of_strata(frozenset([name])), rng), batch_tokens=batch_tokens, eps=eps)
            for name in sorted(drawn)
            if name in fresh.strata
        ]
        elsewhere = [real_batches(in_order(unseen.of_strata(others), rng), batch_tokens=batch_tokens, eps=eps)] if others else []
        fitted = real_batches(sample, batch_tokens=batch_tokens, eps=eps)
        for place, label in enumerate(labels):
            mine = slice(place * num_layers, (place + 1) * num_layers)
            other = (place + 1) % len(labels)
            theirs = slice(other * num_layers, (other + 1) * num_layers)
            levels = _levels(
                replace(sample, layers=first.layers, loads_SBL=sample.loads_SBL[:, :, mine]), batch_tokens, eps, number
            )
            for at, ep in enumerate(eps):
                yield Outcome(
                    policy=label,
                    ep=ep,
                    bounds=_bounds(_worsts([fitted], at, mine)[:num_fitted], *(one[at] for one in levels)),
                    fresh={
                        "same mix": _worsts(mixed, at, mine),
                        "one stratum": _worsts(alone, at, mine),
                        "other policy": _worsts(mixed if len(labels) > 1 else [], at, theirs),
                        "other strata": _worsts(elsewhere, at, mine),
                    },
                )


def in_order(counts: Counts, rng: np.random.Generator) -> Counts:
    """The same trajectories in a random order."""
    place_T = np.empty(len(counts.units_T))
    place_T[rng.permutation(len(place_T))] = np.arange(len(place_T))
    return counts.of_steps(np.argsort(place_T[counts.trajectory_ids], kind="stable"))


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Markdown: exceedance rates in percent, the mean and the middle 95% over repetitions; then the excess and its middle 95%."""
    yield f"| policy | EP | rule | {', % | '.join(FRESH)}, % | excess / that of the fresh 99.9th percentile | fitted in |"
    yield "|---" * (len(FRESH) + 5) + "|"
    for policy, ep in dict.fromkeys((one.policy, one.ep) for one in outcomes):
        here = [one for one in outcomes if (one.policy, one.ep) == (policy, ep)]
        true = float(np.quantile(np.concatenate([one.fresh["same mix"] for one in here]), TRUE_SHARE, method="inverted_cdf"))
        for rule in RULES:
            known = [one for one in here if np.isfinite(one.bounds[rule])]
            rates = [
                _spread([100 * float(np.mean(one.fresh[kind] > one.bounds[rule])) for one in known if len(one.fresh[kind])])
                for kind in FRESH
            ]
            excess = _spread([(one.bounds[rule] - 1) / (true - 1) for one in known], digits=2)
            yield f"| {policy} | {ep} | {rule} | {' | '.join(rates)} | {excess} | {len(known)} of {len(here)} |"


def _spread(values: Sequence[float], *, digits: int = 3) -> str:
    if not values:
        return "none"
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{np.mean(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _strata(counts: Counts, rng: np.random.Generator) -> tuple[frozenset[str], frozenset[str]]:
    names = rng.permutation(counts.strata).tolist()
    return frozenset(names[:NUM_STRATA]), frozenset(names[NUM_STRATA:])


def _first_batches(counts: Counts, batch_tokens: int, num_fitted: int, eps: Sequence[int]) -> Counts | None:
    """The trajectories that fill `num_fitted` batches, the last with its whole length; None if they don't."""
    order = list(dict.fromkeys(counts.trajectory_ids.tolist()))
    tokens_T = np.bincount(counts.trajectory_ids, weights=counts.num_tokens)[order]
    first = max(1, int(np.searchsorted(np.cumsum(tokens_T), num_fitted * batch_tokens)) - 1)
    for num in range(first, len(order) + 1):
        part = counts.of_steps(np.isin(counts.trajectory_ids, order[:num]))
        is_long = part.num_tokens_packed >= num_fitted * batch_tokens
        if is_long and real_batches(part, batch_tokens=batch_tokens, eps=eps[:1]).num_batches >= num_fitted:
            return part
    return None


def _levels(sample: Counts, batch_tokens: int, eps: Sequence[int], seed: int) -> tuple[Values, Values, Values]:
    """(H, S, R) by EP size; nan where the rule has too few units or, for S, too few tokens."""
    none = np.full(len(eps), np.nan)
    if len(sample.own_units) < MIN_UNITS:
        return none, none, none
    asked = {"batch_tokens": batch_tokens, "eps": tuple(eps), "by_layer": False, "seed": seed}
    parts = [sample.of_strata(frozenset([name])) for name in sample.strata] if len(sample.strata) > 1 else []
    parts = [one for one in parts if len(one.own_units) >= MIN_UNITS and one.num_tokens_packed >= batch_tokens]
    mix, *strata = (resample.resampled_levels(one, **asked).high_NC[:, 0] for one in (sample, *parts))  # type: ignore[arg-type]
    text = repeated_text(sample, batch_tokens=batch_tokens, eps=eps, by_layer=False)
    loops = np.array([float(text.bound((place, 0), Fraction(mix[place]))) for place in range(len(eps))])
    return mix, np.max(strata, axis=0) if strata else none, loops


def _worsts(batches: Sequence[RealBatches], at: int, layers: slice) -> Values:
    """Each batch's worst layer at one EP size."""
    found = [
        (one.busiest_BNL[:, at, layers] * one.eps[at] / one.rows_BL[:, layers]).max(axis=1) for one in batches if one.num_batches
    ]
    return np.concatenate(found) if found else np.zeros(0)


def _bounds(seen: Values, mix: float, stratum: float, loop: float) -> dict[str, float]:
    assert len(seen) >= MIN_BATCHES
    observed = float(seen.max())
    headroom = 1 + float(HEADROOM) * (observed - 1)
    both = float(np.fmax(mix, stratum))
    default = max(observed, both, loop) if np.isfinite(mix) else np.nan  # headroom is another rule, and has its row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unusable fit shows in the table
        free = float(stats.genextreme.isf(gumbel.PASSED, *stats.genextreme.fit(seen)))
    up = ceil(10 * round(default, 9)) / 10 if np.isfinite(default) else np.nan
    return dict(zip(RULES, (observed, headroom, free, mix, stratum, both, loop, default, up), strict=True))


def heading(*, batch_tokens: int, num_fitted: int, seed: int, num: int, asked: int) -> str:
    """What the table is of, for its reader and for `publish_calibration`."""
    return (
        f"Batches of {batch_tokens} tokens, fitted on {num_fitted} of them, seed {seed}: "
        f"{num} of {asked} repetitions had so many on either side."
    )


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**53:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 on")
    return int(text)


def main() -> None:
    """Prints the heading and the table as Markdown, or says in one line why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs of several policies over one corpus")
    parser.add_argument("--batch-tokens", type=_whole, default=20_000)
    parser.add_argument("--fitted-batches", type=_whole, default=NUM_FITTED)
    parser.add_argument("--ep", default=",".join(map(str, EPS)), help="EP sizes, comma-separated")
    parser.add_argument("--repetitions", type=_whole, default=200)
    parser.add_argument("--resampled-batches", type=_whole, default=400)
    parser.add_argument("--pools", type=_whole, default=40)
    parser.add_argument("--seed", type=_whole, default=20261130)
    asked = parser.parse_args()
    if asked.fitted_batches < MIN_BATCHES:
        parser.error(f"--fitted-batches {asked.fitted_batches}: the default takes {MIN_BATCHES} or more")
    try:
        _print_table(asked)
    except RoutingError as error:
        print(f"pipelines.calibrate_rules: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _print_table(asked: argparse.Namespace) -> None:
    eps = ep_sizes(asked.ep)
    assert eps is not None
    resample.NUM_BATCHES, resample.NUM_POOLS = asked.resampled_batches, asked.pools
    policies = read_counts(asked.runs, batch_tokens=asked.batch_tokens, eps=eps)
    outcomes = list(
        calibrate(
            policies,
            batch_tokens=asked.batch_tokens,
            eps=eps,
            numbers=range(asked.repetitions),
            seed=asked.seed,
            num_fitted=asked.fitted_batches,
        )
    )
    if not outcomes:
        few = f"no repetition has {asked.fitted_batches} full batches of {asked.batch_tokens} tokens in half of its units"
        raise InputError(f"{few}; ask for fewer (--fitted-batches), or for smaller ones (--batch-tokens)")
    num = len(outcomes) // (len(eps) * len(policies))
    sizes = {"batch_tokens": asked.batch_tokens, "num_fitted": asked.fitted_batches}
    print(heading(**sizes, seed=asked.seed, num=num, asked=asked.repetitions) + "\n")
    for line in table(outcomes):
        print(line)


if __name__ == "__main__":
    main()
