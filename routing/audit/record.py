"""The audit as plain values: what the page shows, for machines. Its JSON Schema is data/schemas/audit.schema.json."""

from collections.abc import Iterator
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Literal

from routing.audit.difference import held_out_of
from routing.audit.entries import EntryFacts
from routing.audit.facts import Facts, RunFacts
from routing.audit.figures import reference_size
from routing.audit.peaks import PeakFacts, untested_eps
from routing.audit.reach import limits, reach, stated
from routing.audit.record_rows import (
    AboveRecord,
    AllowanceRecord,
    AuditRecord,
    ChangeRecord,
    HeldOutRecord,
    LimitsRecord,
    PeakRecord,
    RunRecord,
    TableRecord,
    TermRecord,
    VerdictRecord,
)
from routing.audit.verdict import judge

SCHEMA_VERSION: Literal[1] = 1


def audit_body(facts: Facts) -> dict[str, Any]:
    """As `routing report --json` gives it; null where a number is undefined."""
    return asdict(audit_record(facts))


def audit_record(facts: Facts) -> AuditRecord:
    """Every number of the page, unrounded."""
    verdict, chosen = judge(facts), reference_size(facts.runs)
    return AuditRecord(
        schema_version=SCHEMA_VERSION,
        generator="routing report",
        verdict=VerdictRecord(
            kind=verdict.kind,
            headline=verdict.headline,
            action=verdict.action,
            sentences=verdict.sentences,
            not_covered=verdict.not_covered,
        ),
        table=TableRecord(
            name=facts.table_name,
            model=facts.table.model.name,
            placement=facts.table.placement,
            content_hash=facts.table.content_hash,
            view=facts.view,
            order=facts.order,
        ),
        reference_batch_tokens=chosen,
        allowances=tuple(_allowance(one) for one in facts.entries),
        above=tuple(_above(facts)),
        runs=tuple(_run(run) for run in facts.runs),
        pairs=facts.pairs,
        changes=None if facts.against is None else tuple(_changes(facts)),
        held_out=tuple(_held_out(facts)),
        calibrations=facts.calibrations,
        peaks=tuple(_peak(one) for one in facts.peaks),
        limits=LimitsRecord(
            reach=reach(facts),
            sentences=(*stated(facts), *limits(facts)),
            checks=facts.checks,
            eps_without_peak=untested_eps([one.entry.ep for one in facts.entries], facts.peaks),
        ),
        provenance=dict(facts.provenance),
    )


def _allowance(one: EntryFacts) -> AllowanceRecord:
    entry, evidence = one.entry, one.entry.evidence
    most, held_out = evidence.observed_max, held_out_of(entry)
    return AllowanceRecord(
        ep=entry.ep,
        batch_tokens=entry.batch_tokens,
        layer=entry.layer,
        allowance=float(entry.allowance),
        status=entry.status,
        method=evidence.method,
        outcome=one.outcome,
        standing=one.standing,
        seen=_float(one.seen),
        observed_max=None if most is None else float(most.imbalance),
        observed_policy=None if most is None else most.label,
        observed_layer=None if most is None else most.layer,
        observed_batch=None if most is None else most.batch,
        observed_rank=None if most is None else most.rank,
        slack=_float(one.slack),
        raw_bound=_float(evidence.raw_bound),
        level_estimate=None if one.level is None else float(one.level.estimate),
        level_low=None if one.level is None else float(one.level.low),
        level_high=None if one.level is None else float(one.level.high),
        ceiling=float(evidence.ceiling),
        binds=evidence.binds,
        num_batches=evidence.num_batches,
        num_units=evidence.num_units,
        held_out_above=None if held_out is None else held_out[0],
        held_out_batches=None if held_out is None else held_out[1],
        warnings=evidence.warnings,
    )


def _above(facts: Facts) -> Iterator[AboveRecord]:
    for one in facts.comparisons:
        for batch in one.above:
            yield AboveRecord(
                run=one.identity.run,
                policy=one.identity.label,
                ep=one.entry.ep,
                batch_tokens=one.entry.batch_tokens,
                allowance_layer=one.entry.layer,
                allowance=float(one.entry.allowance),
                imbalance=batch.worst.ratio(one.entry.ep),
                layer=batch.worst.layer,
                batch=batch.worst.batch,
                rank=batch.worst.rank,
                layers_above=batch.num_layers,
            )


def _run(run: RunFacts) -> RunRecord:
    return RunRecord(
        name=run.name,
        run=run.run,
        label=run.label,
        policy=run.policy,
        architecture=run.architecture,
        markings=run.markings,
        num_moe_layers=run.num_moe_layers,
        num_experts=run.num_experts,
        top_k=run.top_k,
        tokens_packed=run.tokens_packed,
        tokens_logical=run.tokens_logical,
        num_trajectories=run.num_trajectories,
        refused=dict(run.refused),
        content_hash=run.content_hash,
        corpus_hash=run.corpus_hash,
        device=run.device,
        is_dirty=run.is_dirty,
        files=run.files,
        provenance=dict(run.provenance),
        worsts=run.worsts,
        layers=run.layers,
        shares=run.shares,
        batches=run.batches,
    )


def _changes(facts: Facts) -> Iterator[ChangeRecord]:
    for one in facts.against or ():
        yield ChangeRecord(
            ep=one.entry.ep,
            batch_tokens=one.entry.batch_tokens,
            layer=one.entry.layer,
            change=one.change,
            previous=None if one.committed is None else float(one.committed.allowance),
            allowance=None if one.fitted is None else float(one.fitted.allowance),
            lost_support=one.lost_support,
        )


def _held_out(facts: Facts) -> Iterator[HeldOutRecord]:
    for one in facts.entries:
        for judged in one.entry.evidence.held_out or ():
            yield HeldOutRecord(
                ep=one.entry.ep,
                batch_tokens=one.entry.batch_tokens,
                layer=one.entry.layer,
                kind=judged.kind,
                policy=judged.label,
                part=judged.part,
                method=judged.method,
                allowance=float(judged.allowance),
                num_batches=judged.num_batches,
                num_above=judged.num_above,
                worst=_float(judged.worst),
            )


def _peak(one: PeakFacts) -> PeakRecord:
    return PeakRecord(
        wave=one.peak.wave,
        state=one.peak.state,
        source=one.peak.source,
        ep=one.ep,
        cp=one.cp,
        allowance=float(one.allowance),
        status=one.status,
        baseline_bytes=one.peak.baseline_bytes,
        peak_bytes=one.peak.peak_bytes,
        measured_bytes=one.peak.measured_bytes,
        estimate_bytes=one.estimate_bytes,
        without_hybridep_bytes=one.without_hybridep_bytes,
        over_fraction=one.over_fraction,
        over_fraction_without_hybridep=one.over_fraction_without_hybridep,
        is_under=one.is_under,
        binding_rank=one.binding_rank,
        alive=tuple(
            TermRecord(rank=rank.rank, term=name, bytes=num_bytes) for rank in one.ranks for name, num_bytes in rank.terms
        ),
        warnings=one.warnings,
    )


def _float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
