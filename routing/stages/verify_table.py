"""`routing verify allowances.yaml --runs RUN...`: every entry fitted again, and what it saw counted again without SQL."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from routing.audit.difference import Moved, difference
from routing.audit.refit import field_differences
from routing.core.allowance import AllowanceTable, Entry, Floor
from routing.core.errors import CheckFailedError, InputError
from routing.core.placement import Placement, recorded_placement
from routing.stages.check import Cut, cuts, require_same_model
from routing.stages.fit import VIEW, fitted
from routing.stages.imbalance import open_distinct
from routing.stages.verify import first_failure, recounted
from routing.store.allowances import read_table
from routing.store.run import Run, require_finished
from routing.verify.entries import CountedBatches, counted_batches, largest, recount_differences, seen

_FROM_COUNTS = ("fitted", "headroom", "proven")
_NUM_TOLD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyTableAnswer:
    """`rows` as `routing verify --json` gives them, one an entry; `failure` for the first that differs."""

    rows: list[dict[str, Any]]
    failure: CheckFailedError | None
    warnings: tuple[str, ...]


def verify_table(table_path: Path, folders: Sequence[Path], *, placement: Placement | None) -> VerifyTableAnswer:
    """Refits `table_path` from the runs that it names and compares entry by entry; InputError where it can't be refitted."""
    table = read_table(table_path)
    cut, placed = _cut_of(table, table_path), recorded_placement(table.placement, placement)
    runs = _runs_of(table, table_path, folders)
    again, _ = fitted(
        runs,
        eps=cut.eps,
        batch_sizes=cut.batch_sizes,
        order=cut.order,
        by_layer=any(entry.layer != "all" for entry in table.entries),
        floors_for=lambda shape, eps: {ep: _floors_of(table, ep) for ep in eps},
        placement=placed,
    )
    counted = {str(run.manifest.content_hash): _counted(run, cut, placed) for run in runs}
    rows = []
    failure = None
    for moved in difference(table, again):
        told = [*_refit_differences(moved), *_recount_differences(moved, counted)]
        rows.append(_row(moved, told))
        if told and failure is None:
            failure = CheckFailedError(f"{table_path}: {_name(moved.entry)}: {told[0]}; fit it again from these runs")
    for told_of_model in field_differences(table.model, again.model, where="model"):
        failure = failure or CheckFailedError(f"{table_path}: {told_of_model}; fit it again from these runs")
    notices = [notice for run in runs for notice in run.notices]
    return VerifyTableAnswer(rows=rows, failure=failure, warnings=tuple(dict.fromkeys(notices)))


def _cut_of(table: AllowanceTable, table_path: Path) -> Cut:
    other = next((entry for entry in table.entries if entry.status not in _FROM_COUNTS), None)
    if other is not None:
        raise InputError(f"{table_path}: {_name(other)} is {other.status}, not fitted from runs; there is nothing to fit again")
    found = cuts(table, table_path)
    if len(found) > 1 or found[0].view != VIEW:
        raise InputError(f"{table_path}: batches cut in {len(found)} ways, a fit cuts them in one ({VIEW}); fit it again")
    return found[0]


def _runs_of(table: AllowanceTable, table_path: Path, folders: Sequence[Path]) -> list[Run]:
    """The runs in the order in which the table was fitted from them; CheckFailedError where it rests on others."""
    runs = open_distinct(folders)
    for run in runs:
        require_finished(run)
        require_same_model(table, run.manifest.shape, table_path, where=str(run.folder))
    rests_on = {one.content_hash: one for entry in table.entries for one in entry.evidence.policies}
    given = {run.manifest.content_hash: run for run in runs}
    for content_hash, policy in rests_on.items():
        if content_hash not in given:
            what = f"rests on a run {policy.run!r} with content hash {str(content_hash)[:12]}, which none of these runs has"
            raise CheckFailedError(f"{table_path}: {what}; name it, or fit the table again")
    for content_hash, run in given.items():
        if content_hash not in rests_on:
            what = f"does not rest on {run.folder} (content hash {str(content_hash)[:12]})"
            raise CheckFailedError(f"{table_path}: {what}; leave it out")
    return [given[content_hash] for content_hash in rests_on]


def _floors_of(table: AllowanceTable, ep: int) -> tuple[Floor, ...]:
    return tuple(dict.fromkeys(floor for entry in table.entries if entry.ep == ep for floor in entry.evidence.floors))


def _counted(run: Run, cut: Cut, placed: Placement) -> dict[int, CountedBatches]:
    """The run's batches by their size; CheckFailedError for the first check of the second way that fails."""
    tree, counted, found = recounted(run, cut.eps, placed)
    failure = first_failure(run, found)
    if failure is not None:
        raise failure
    assert tree is not None, "a tree that can't be read is a failed check"
    assert counted is not None, "as above"
    layers = run.manifest.shape.moe_layers
    return {size: counted_batches(tree, counted.ranks, layers, batch_tokens=size, order=cut.order) for size in cut.batch_sizes}


def _refit_differences(moved: Moved) -> Iterator[str]:
    if moved.committed is None or moved.fitted is None:
        yield "only in the new fit" if moved.committed is None else "no entry in the new fit"
        return
    yield from field_differences(moved.committed, moved.fitted)


def _recount_differences(moved: Moved, counted: Mapping[str, Mapping[int, CountedBatches]]) -> Iterator[str]:
    """Batches and tokens of every policy, and the largest imbalance with its place, of the entry that is committed."""
    entry = moved.committed
    if entry is None:
        return
    layer = None if entry.layer == "all" else entry.layer
    by_hash = {name: seen(by_size[entry.batch_tokens], ep=entry.ep, layer=layer) for name, by_size in counted.items()}
    for policy in entry.evidence.policies:
        one = by_hash[str(policy.content_hash)]
        said = {"num_batches": policy.num_batches, "num_tokens": policy.num_tokens}
        found = {name: getattr(one, name) for name in said}
        yield from (f"{policy.label}: {told}" for told in recount_differences(said, found))
    most, claimed = largest(list(by_hash.values()), ep=entry.ep), entry.evidence.observed_max
    if most is not None and claimed is not None:
        found = {name: getattr(most, name) for name in ("busiest_rows", "routed_rows", "batch", "layer", "rank")}
        found["imbalance"] = Decimal(repr(most.busiest_rows * entry.ep / most.routed_rows))
        yield from recount_differences({name: getattr(claimed, name) for name in found}, found)


def _row(moved: Moved, told: Sequence[str]) -> dict[str, Any]:
    allowances = {"committed": moved.committed, "refitted": moved.fitted}
    more = [f"and {len(told) - _NUM_TOLD} more"] if len(told) > _NUM_TOLD else []
    return {
        **{name: getattr(moved.entry, name) for name in ("ep", "batch_tokens", "layer")},
        **{name: None if entry is None else float(entry.allowance) for name, entry in allowances.items()},
        "outcome": "differs" if told else "equal",
        "differences": [*told[:_NUM_TOLD], *more],
    }


def _name(entry: Entry) -> str:
    return f"entry ep={entry.ep} batch_tokens={entry.batch_tokens} layer={entry.layer}"
