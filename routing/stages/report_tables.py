"""What the report reads from one run: its tables at every batch size of the page, and its segments for drawing units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from routing.audit.claims import Comparison
from routing.audit.facts import BatchWorsts, LayerMove, LayerRow, PolicyPair, RunFacts, ShareRow, WorstRow
from routing.audit.uniform import uniform_worst
from routing.core.batches import BATCH_SIZES
from routing.core.placement import Placement
from routing.fit.counts import Counts
from routing.fit.side_by_side import layer_differences
from routing.fit.strat_boot import MIN_UNITS
from routing.query.imbalance import Tabulated, tabulated
from routing.query.loads import segment_loads
from routing.query.runner import ask
from routing.query.script import paste_script
from routing.stages.check import Cut, compared
from routing.stages.imbalance import as_lines
from routing.stages.run_facts import run_facts
from routing.store.run import Run

_TOLD_ON_THE_PAGE = ("no_full_batch", "partial_batch_dropped", "one_batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One run: its facts, every entry held against it, warnings, and its counts by segment."""

    facts: RunFacts
    comparisons: tuple[Comparison, ...]
    cautions: tuple[str, ...]
    counts: Counts


def measured(name: str, run: Run, the_cuts: Sequence[Cut], placement: Placement) -> Measured:
    """A run cut as the table's entries were, and as its first entry was at the usual sizes too, which the charts show."""
    comparisons, cautions, tables_of_page = list[Comparison](), list[str](), dict[str, Any]()
    counts: Counts | None = None
    for place, cut in enumerate(the_cuts):
        sizes = sorted({*cut.batch_sizes, *(BATCH_SIZES if place == 0 else ())}, reverse=True)
        with tabulated(run, eps=cut.eps, batch_sizes=sizes, view=cut.view, order=cut.order, placement=placement) as tables:
            comparisons += compared(cut, run, tables)
            cautions += as_lines([one for one in tables.cautions if one.code not in _TOLD_ON_THE_PAGE])
            if place == 0:
                tables_of_page = _tables(run, tables, cut)
                counts = Counts(**segment_loads(tables, eps=cut.eps, layers=run.manifest.shape.moe_layers))
    assert counts is not None  # a table has an entry, so there is a cut
    facts = run_facts(name, run, tables_of_page | {"num_units": len(counts.unit_names)})
    return Measured(facts=facts, comparisons=tuple(comparisons), cautions=tuple(cautions), counts=counts)


def policy_pairs(runs: Sequence[Measured], eps: Sequence[int]) -> tuple[PolicyPair, ...]:
    """The first run beside each other one, layer by layer; without layers where too few units could be drawn."""
    return tuple(_pair(runs[0], other, eps) for other in runs[1:])


def _pair(base: Measured, other: Measured, eps: Sequence[int]) -> PolicyPair:
    thin = next((one.facts.name for one in (base, other) if len(one.counts.units) < MIN_UNITS), None)
    return PolicyPair(
        base=base.facts.name,
        other=other.facts.name,
        is_paired=base.facts.corpus_hash == other.facts.corpus_hash,
        layers=() if thin is not None else tuple(_moves(base, other, eps)),
        why_not="" if thin is None else f"{thin} has fewer than {MIN_UNITS} units, too few to draw from",
    )


def _moves(base: Measured, other: Measured, eps: Sequence[int]) -> Iterator[LayerMove]:
    for row in layer_differences(base.counts, other.counts, eps=eps, seeds=(_seed(base), _seed(other))):
        yield LayerMove(
            ep=row.ep,
            layer=row.layer,
            base_imbalance=row.base,
            other_imbalance=row.other,
            low=row.low,
            high=row.high,
            is_beyond=row.is_beyond,
        )


def _seed(run: Measured) -> int:
    """Of the corpus, so that runs of one corpus draw the same units."""
    return int(run.facts.corpus_hash[:12], 16)


def _tables(run: Run, tables: Tabulated, cut: Cut) -> dict[str, Any]:
    worsts: dict[tuple[int, int], list[float]] = {}
    for row in ask(tables.con, "sql/worst_distribution.sql"):
        worsts.setdefault((row["ep"], row["batch_tokens"]), []).append(row["worst_imbalance"])
    return {
        "worsts": _worsts(run, tables, cut),
        "layers": tuple(
            LayerRow(**{field.name: row[field.name] for field in fields(LayerRow)})
            for row in ask(tables.con, "sql/imbalance_by_layer.sql")
        ),
        "shares": tuple(ShareRow(**row) for row in ask(tables.con, "sql/worst_rank_loads.sql")),
        "batches": tuple(BatchWorsts(ep=ep, batch_tokens=size, imbalances=tuple(one)) for (ep, size), one in worsts.items()),
        "script": paste_script(run, tables.batches, eps=cut.eps, view=cut.view, order=cut.order, placement=tables.placement),
    }


def _worsts(run: Run, tables: Tabulated, cut: Cut) -> tuple[WorstRow, ...]:
    """A row for every EP and batch size; a usual size that the table lacks only where the run has a full batch of it."""
    answers = {(row["ep"], row["batch_tokens"]): row for row in ask(tables.con, "sql/imbalance.sql")}
    own = ("num_batches", "num_tokens", "dropped_tokens", "ep", "batch_tokens", "uniform")
    values = [field.name for field in fields(WorstRow) if field.name not in own]
    shape = run.manifest.shape
    router = {"num_experts": shape.num_experts, "top_k": shape.top_k, "num_layers": len(shape.moe_layers)}
    return tuple(
        WorstRow(
            ep=ep,
            batch_tokens=batches.batch_tokens,
            num_batches=batches.num_batches,
            num_tokens=batches.num_tokens,
            dropped_tokens=batches.dropped_tokens,
            uniform=uniform_worst(
                ep=ep, num_batches=batches.num_batches, batch_tokens=batches.num_tokens / batches.num_batches, **router
            )
            if batches.num_batches
            else None,
            **{name: answers.get((ep, batches.batch_tokens), {}).get(name) for name in values},
        )
        for ep in cut.eps
        for batches in tables.batches
        if batches.num_batches or batches.batch_tokens in cut.batch_sizes
    )
