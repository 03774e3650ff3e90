"""What an entry carries beside its allowance, from the worsts of every run at one EP size and batch size."""

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from routing.core.allowance import (
    ALLOWANCE_GRID,
    Evidence,
    LayerShare,
    ObservedMax,
    Parameter,
    PolicyEvidence,
    ceil_to,
    proven_ceiling,
)
from routing.core.coverage import ONLY_PROVEN
from routing.core.judgement import HeldOut, Level
from routing.core.observed import BatchWorst, MeasuredRun, ObservedWorsts
from routing.fit import strat_boot
from routing.fit.cell import Cell
from routing.fit.headroom import METHOD as HEADROOM_METHOD
from routing.fit.sentences import cell_coverage, cell_warnings, held_out_warnings
from routing.fit.steps import Allowed
from routing.fit.strat_boot import Resampled

UNIT = "domain and task where the file names a task, else the trajectory"
QUANTILE_RULE = "quantile_disc: the smallest value that at least that share of batches do not exceed"

NUM_WORST_LAYERS = 5
_FINE = Decimal("0.000001")
_SHARE = Decimal("0.0001")


def counted_evidence(
    cell: Cell, fitted: Allowed, *, parameters: dict[str, Parameter], held_out: tuple[HeldOut, ...] = ()
) -> Evidence:
    """The evidence of an entry whose allowance was fitted to counts."""
    batches = [one for worsts in cell.observed for one in worsts.worsts]
    observed_max = _observed_max(cell)
    return Evidence(
        method=cell.method,
        parameters={**parameters, "quantile_rule": QUANTILE_RULE},
        raw_bound=fine(fitted.raw_bound),
        grid=ALLOWANCE_GRID,
        ceiling=fitted.ceiling,
        ceiling_reason=fitted.ceiling_reason,
        binds=fitted.binds,
        num_batches=len(batches),
        num_units=len(frozenset().union(*(worsts.units for worsts in cell.observed))),
        unit=UNIT,
        num_tokens=sum(worsts.num_tokens for worsts in cell.observed),
        observed_max=observed_max,
        median=_quantile(batches, cell.ep, Fraction(1, 2)),
        p95=_quantile(batches, cell.ep, Fraction(95, 100)),
        slack=slack(fitted.allowance, max(one.imbalance(cell.ep) for one in batches)),
        worst_layers=_worst_layers(batches),
        floors=cell.floors,
        coverage=cell_coverage(cell, fitted.ceiling, held_out),
        warnings=(*cell_warnings(cell), *held_out_warnings(held_out, cell)),
        policies=_policies(cell),
        estimate=largest(levels.level(run, cell.ep, cell.layer) for run, levels in cell.levels()),
        stress=largest(levels.stress(run, cell.ep, cell.layer) for run, levels in cell.levels()),
        held_out=held_out if cell.is_resampled else None,
    )


def largest(levels: Iterable[Level | None]) -> Level | None:
    """The one with the largest upper end, by run and stratum of equals; None of none."""
    known = [one for one in levels if one is not None]
    return max(known, key=lambda one: (one.high, one.run, one.stratum or ""), default=None)


def proven_evidence(cell: Cell, *, parameters: dict[str, Parameter]) -> Evidence:
    """The evidence of an entry that rests on no count: only that a token's experts are distinct and ranks are `ep`."""
    shape = cell.runs[0].shape
    ceiling, reason = proven_ceiling(cell.ep, num_experts=shape.num_experts, top_k=shape.top_k)
    return Evidence(
        method="min(ep, num_experts / top_k)",
        parameters=parameters,
        raw_bound=None,
        grid=ALLOWANCE_GRID,
        ceiling=ceiling,
        ceiling_reason=reason,
        binds="ceiling",
        num_batches=sum(len(worsts.worsts) for worsts in cell.observed),
        num_units=len(frozenset().union(*(worsts.units for worsts in cell.observed))),
        unit=UNIT,
        num_tokens=sum(worsts.num_tokens for worsts in cell.observed),
        observed_max=None,
        median=None,
        p95=None,
        slack=None,
        worst_layers=(),
        floors=(),
        coverage=(f"{ONLY_PROVEN}{ceiling} is proven, and no run has two full batches to fit from.",),
        warnings=("only_proven: fewer than two full batches at every size asked for",),
        policies=_policies(cell),
    )


def policy_evidence(run: MeasuredRun, worsts: ObservedWorsts, resampled: Resampled | None) -> PolicyEvidence:
    """What one run adds to a cell."""
    method = strat_boot.METHOD if resampled is not None else HEADROOM_METHOD if worsts.worsts else None
    return PolicyEvidence(
        run=run.run,
        label=run.label,
        name=run.policy,
        revision=run.revision,
        weights_sha256=run.weights_sha256,
        content_hash=run.content_hash or "",
        corpus_hash=run.corpus_hash,
        num_batches=len(worsts.worsts),
        num_tokens=worsts.num_tokens,
        dropped_tokens=worsts.dropped_tokens,
        num_units=len(worsts.units),
        observed_max=_quantile(worsts.worsts, worsts.ep, Fraction(1)),
        median=_quantile(worsts.worsts, worsts.ep, Fraction(1, 2)),
        p95=_quantile(worsts.worsts, worsts.ep, Fraction(95, 100)),
        method=method,
        seed=strat_boot.seed_of(run.content_hash or "") if resampled is not None else None,
    )


def _observed_max(cell: Cell) -> ObservedMax:
    """The first run's, then the first batch's, of equals."""
    run, worsts, one = max(
        ((run, worsts, one) for run, worsts in zip(cell.runs, cell.observed, strict=True) for one in worsts.worsts),
        key=lambda found: found[2].imbalance(cell.ep),
    )
    return ObservedMax(
        imbalance=one.decimal(cell.ep),
        busiest_rows=one.busiest_rows,
        routed_rows=one.routed_rows,
        run=run.run,
        label=run.label,
        batch=one.batch,
        layer=one.layer,
        rank=one.rank,
        top_experts=worsts.top_experts,
    )


def _quantile(batches: Sequence[BatchWorst], ep: int, share: Fraction) -> Decimal | None:
    """By QUANTILE_RULE; None of no batches."""
    if not batches:
        return None
    ordered = sorted(batches, key=lambda one: one.imbalance(ep))
    return ordered[max(0, -(-share * len(ordered) // 1) - 1)].decimal(ep)


def _worst_layers(batches: Sequence[BatchWorst]) -> tuple[LayerShare, ...]:
    won = Counter(one.layer for one in batches)
    ranked = sorted(won.items(), key=lambda item: (-item[1], item[0]))[:NUM_WORST_LAYERS]
    return tuple(LayerShare(layer=layer, share=(Decimal(count) / len(batches)).quantize(_SHARE)) for layer, count in ranked)


def fine(value: Fraction) -> Decimal:
    """A bound up to the digits that the table writes of it, 1e-6."""
    return ceil_to(value, _FINE)


def slack(allowance: Decimal, worst: Fraction) -> Decimal:
    """Allowance minus the observed max, down to 1e-6."""
    return (Fraction(allowance) - worst) // Fraction(_FINE) * _FINE


def _policies(cell: Cell) -> tuple[PolicyEvidence, ...]:
    return tuple(map(policy_evidence, cell.runs, cell.observed, cell.resampled))
