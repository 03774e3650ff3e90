"""`routing check`: an allowance table and finished runs in; every measured batch that is above its allowance out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from routing.audit.answer import check_answer
from routing.audit.claims import (
    NOTHING_CHANGED,
    Comparison,
    CutRun,
    Proposal,
    RunIdentity,
    compare,
    failure,
    nothing_said,
)
from routing.core.allowance import AllowanceTable, Entry
from routing.core.batches import VIEWS
from routing.core.errors import InputError
from routing.core.observed import BatchWorst
from routing.core.placement import Placement, recorded_placement
from routing.core.shapes import ModelShape
from routing.fit.headroom import headroom_allowances
from routing.query.batches import CORPUS_ORDER, Order
from routing.query.imbalance import Tabulated, tabulated
from routing.query.runner import ask
from routing.stages.imbalance import as_lines, open_distinct
from routing.store.allowances import read_table
from routing.store.run import Run

_SAME_CHOICES = ("dtype", "segment_tokens")  # those of a fit that a run may differ in and still be checked


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckAnswer:
    """`answer` as `routing check --json` gives it; `warnings` one line each.

    `comparisons` are what it was made of.
    `failure` says what was exceeded and `nothing_said` that not one entry could be compared; both None is a pass.
    """

    answer: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]
    failure: str | None
    nothing_said: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How a fit cut its batches, and the entries that it made so."""

    view: str
    order: Order
    entries: tuple[Entry, ...]

    @property
    def eps(self) -> tuple[int, ...]:
        return tuple(sorted({entry.ep for entry in self.entries}))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Largest first."""
        return tuple(sorted({entry.batch_tokens for entry in self.entries}, reverse=True))


def check(
    table_path: Path, folders: Sequence[Path], *, next_step: str = NOTHING_CHANGED, placement: Placement | None = None
) -> CheckAnswer:
    """Compares every entry with every run of the table's model; InputError where a run is of another. Changes nothing.

    `next_step` is what a failure tells whoever reads it to do; `placement` is needed where the table is of a file's.
    """
    table = read_table(table_path)
    placed = recorded_placement(table.placement, placement)
    runs = open_distinct(folders)
    for run in runs:
        require_same_model(table, run.manifest.shape, table_path, where=str(run.folder))
    comparisons: list[Comparison] = []
    warnings: list[str] = []
    for run in runs:
        warnings += [*run.notices, *other_choices(table, run)]
        for cut in cuts(table, table_path):
            sizes = {"eps": cut.eps, "batch_sizes": cut.batch_sizes}
            with tabulated(run, **sizes, view=cut.view, order=cut.order, placement=placed) as tables:
                comparisons += compared(cut, run, tables)
                warnings += as_lines(tables.cautions)
    proposals = propose(table, comparisons)
    return CheckAnswer(
        answer=check_answer(str(table_path), comparisons, proposals),
        comparisons=tuple(comparisons),
        warnings=tuple(dict.fromkeys(warnings)),
        failure=failure(str(table_path), comparisons, proposals, next_step=next_step),
        nothing_said=nothing_said(str(table_path), comparisons),
    )


def require_same_model(table: AllowanceTable, mine: ModelShape, table_path: Path, *, where: str) -> None:
    """InputError naming the first field in which the shape of the run in `where` differs from the table's."""
    theirs = table.model.shape
    for name in ModelShape.__slots__:
        if getattr(mine, name) != getattr(theirs, name):
            raise InputError(
                f"{where}: another model, {name} {_short(getattr(mine, name))} against {_short(getattr(theirs, name))} of "
                f"{table.model.name} in {table_path}; a table belongs to its model, fit one for this run"
            )


def other_choices(table: AllowanceTable, run: Run) -> Iterator[str]:
    """A warning for each choice that the table was fitted with and this run was not measured with."""
    for name in _SAME_CHOICES:
        mine = str(getattr(run.manifest.settings, name))
        fitted = sorted({str(entry.evidence.parameters[name]) for entry in table.entries if name in entry.evidence.parameters})
        if fitted and mine not in fitted:
            yield f"other_{name}: {run.name}: measured with {name} {mine}, the table was fitted with {', '.join(fitted)}"


def cuts(table: AllowanceTable, table_path: Path) -> tuple[Cut, ...]:
    """The entries by the view and order of their parameters (packed, corpus where they name none), as they come."""
    found: dict[tuple[str, Order], list[Entry]] = {}
    for entry in table.entries:
        view = str(entry.evidence.parameters.get("view", "packed"))
        order = str(entry.evidence.parameters.get("order", CORPUS_ORDER))
        if view not in VIEWS or not (order == CORPUS_ORDER or order.isdecimal()):
            place = f"entry ep={entry.ep} batch_tokens={entry.batch_tokens}"
            raise InputError(f"{table_path}: {place}: view {view[:20]!r} and order {order[:20]!r} cut no batches; fit it again")
        found.setdefault((view, int(order) if order.isdecimal() else order), []).append(entry)
    return tuple(Cut(view=view, order=order, entries=tuple(entries)) for (view, order), entries in found.items())


def compared(cut: Cut, run: Run, tables: Tabulated) -> list[Comparison]:
    """Every entry of `cut` against `run`, from tables that hold at least its EP and batch sizes."""
    manifest = run.manifest
    identity = RunIdentity(
        run=run.name,
        label=manifest.label,
        policy=manifest.policy.name,
        content_hash=manifest.content_hash,
        corpus_hash=manifest.corpus.corpus_hash,
    )
    batches = {one.batch_tokens: one for one in tables.batches}
    layers: dict[tuple[int, int], list[BatchWorst]] = {(entry.ep, entry.batch_tokens): [] for entry in cut.entries}
    for row in ask(tables.con, "sql/layer_imbalances.sql"):
        if row["imbalance"] is not None and (row["ep"], row["batch_tokens"]) in layers:
            place = {"batch": row["batch"], "layer": row["layer"], "rank": row["busiest_rank"]}
            one = BatchWorst(**place, busiest_rows=row["busiest_rows"], routed_rows=row["routed_rows"])
            layers[row["ep"], row["batch_tokens"]].append(one)
    found = {
        (ep, size): CutRun(
            identity=identity,
            ep=ep,
            batch_tokens=size,
            num_batches=batches[size].num_batches,
            num_tokens=batches[size].num_tokens,
            dropped_tokens=batches[size].dropped_tokens,
            layers=tuple(sorted(ones, key=lambda one: (one.batch, one.layer))),
        )
        for (ep, size), ones in layers.items()
    }
    return [compare(entry, found[entry.ep, entry.batch_tokens]) for entry in cut.entries]


def propose(table: AllowanceTable, comparisons: Sequence[Comparison]) -> tuple[Proposal, ...]:
    """For what is exceeded, `headroom-v1` over what the table saw and what the runs show, never below the present allowance.

    An entry that a raised divisor's allowance lifts is proposed too, and one of smaller batches that a raised larger one exceeds;
    one of a layer stays within that of all layers.
    """
    exceeded = {(one.entry.batch_tokens, one.entry.layer) for one in comparisons if one.above}
    proposals: list[Proposal] = []
    for size, layer in sorted(exceeded, key=lambda place: (place[1] != "all", -place[0], str(place[1]))):
        entries = {one.ep: one for one in table.entries if (one.batch_tokens, one.layer) == (size, layer)}
        worsts = {ep: _seen(entry, comparisons) for ep, entry in entries.items()}
        floors = {ep: Fraction(entry.allowance) for ep, entry in entries.items()}
        sizes = {"num_experts": table.model.num_experts, "top_k": table.model.top_k}
        for ep, fitted in headroom_allowances(worsts, floors=floors, **sizes).items():
            if fitted.binds == "floor" or fitted.allowance <= entries[ep].allowance:
                continue
            proposed, binds = fitted.allowance, fitted.binds
            cap = _of_all_layers(table, proposals, ep, size) if layer != "all" else None
            if cap is not None and cap < proposed:
                proposed, binds = cap, "all layers"
            place = {"ep": ep, "batch_tokens": size}
            proposals.append(Proposal(**place, layer=layer, allowance=entries[ep].allowance, proposed=proposed, binds=binds))
    return _lifted(table, proposals)


def _lifted(table: AllowanceTable, proposals: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """The proposals, none below one of larger batches: an allowance never rises with the batch size."""
    found = {(one.ep, one.batch_tokens, one.layer): one for one in proposals}
    for entry in sorted(table.entries, key=lambda one: -one.batch_tokens):
        larger = [one for one in found.values() if (one.ep, one.layer) == (entry.ep, entry.layer)]
        most = max((one for one in larger if one.batch_tokens > entry.batch_tokens), key=lambda one: one.proposed, default=None)
        place = (entry.ep, entry.batch_tokens, entry.layer)
        present = found[place].proposed if place in found else entry.allowance
        if most is not None and most.proposed > present:
            binds = f"batch_tokens={most.batch_tokens}"
            found[place] = replace(most, batch_tokens=entry.batch_tokens, allowance=entry.allowance, binds=binds)
    return tuple(found.values())


def _seen(entry: Entry, comparisons: Sequence[Comparison]) -> Fraction:
    """The largest imbalance that the entry's evidence or these runs show; 1 where neither shows any."""
    claimed = entry.evidence.observed_max
    seen = [one.worst.imbalance(entry.ep) for one in comparisons if one.entry is entry and one.worst is not None]
    return max([Fraction(1), *seen, *([Fraction(claimed.imbalance)] if claimed is not None else [])])


def _of_all_layers(table: AllowanceTable, proposals: Sequence[Proposal], ep: int, batch_tokens: int) -> Decimal | None:
    place = (ep, batch_tokens, "all")
    raised = (one.proposed for one in proposals if (one.ep, one.batch_tokens, one.layer) == place)
    present = (one.allowance for one in table.entries if (one.ep, one.batch_tokens, one.layer) == place)
    return next(raised, next(present, None))


def _short(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)[:60]
