"""Measured runs in, an allowance table out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

from routing.core.allowance import (
    TABLE_SCHEMA_VERSION,
    AllowanceTable,
    Entry,
    Floor,
    Generated,
    Parameter,
    TableModel,
    entries_hash,
)
from routing.core.errors import InputError
from routing.core.judgement import HeldOut
from routing.core.lookup import batch_size_for
from routing.core.observed import Caution, MeasuredRun
from routing.core.placement import PLACEMENT
from routing.core.shapes import ModelShape
from routing.fit.by_layer import layer_entries
from routing.fit.cell import Cell
from routing.fit.counts import Counts
from routing.fit.evidence import counted_evidence, proven_evidence
from routing.fit.headroom import HEADROOM
from routing.fit.judge import MIN_FITTED_BATCHES, Fitted, hold, judged_halves, judged_strata
from routing.fit.recut import real_batches
from routing.fit.steps import Place, stepped
from routing.fit.strat_boot import RESAMPLED, Resampled, is_enough, resample

SAME_IN_ALL = ("dtype", "segment_tokens", "view", "order")


def fit_runs(
    runs: Sequence[MeasuredRun],
    *,
    model_name: str,
    generated: Generated,
    counts: Sequence[Counts] = (),
    floors: Mapping[int, Sequence[Floor]] = MappingProxyType({}),
    by_layer: bool = False,
    placement: str = PLACEMENT,
) -> tuple[AllowanceTable, tuple[Caution, ...]]:
    """(The union of policies, warnings): `strat-boot` for counts that are enough for it, else `headroom-v1`.

    `counts` are those of each run, none where only worsts are known; `floors` come from outside, by EP size; `placement` is what
    all were gathered by. The other policies' names become the model's aliases: their shape is the same. Every batch size at which
    some run has two full batches gets entries; the others are left out. Where none has, the smallest size gets what is proven.
    `by_layer` adds entries of single MoE layers, which needs counts. Raises InputError for runs that can't be fitted together.
    """
    require_comparable(runs)
    cells = _cells(runs, counts, floors, by_layer=by_layer)
    sizes = sorted({cell.batch_tokens for cell in cells}, reverse=True)
    fitted_sizes = [size for size in sizes if any(_is_fitted(cell) for cell in cells if cell.batch_tokens == size)]
    parameters: dict[str, Parameter] = {name: getattr(runs[0], name) for name in SAME_IN_ALL}
    if fitted_sizes:
        fitted_cells = [cell for cell in cells if cell.batch_tokens in fitted_sizes]
        held_out = _held_out(runs, counts, fitted_cells)
        entries = tuple(_fitted_entries(fitted_cells, parameters, held_out))
        if by_layer:
            entries += layer_entries(fitted_cells, counts, entries)
    else:
        entries = tuple(_proven_entry(cell, parameters) for cell in cells if cell.batch_tokens == sizes[-1])
    aliases = tuple(sorted({run.policy for run in runs} - {model_name}))
    table = assemble(entries, table_model(model_name, runs[0].shape, aliases), generated, placement)
    return table, tuple(_cautions(entries, sizes, fitted_sizes))


def assemble(
    entries: tuple[Entry, ...], model: TableModel, generated: Generated, placement: str = PLACEMENT
) -> AllowanceTable:
    """The table of `entries` in this program's schema, with its hash."""
    return AllowanceTable(
        schema_version=TABLE_SCHEMA_VERSION,
        model=model,
        placement=placement,
        generated=generated,
        entries=entries,
        content_hash=entries_hash(model, placement, entries, generated),
    )


def table_model(name: str, shape: ModelShape, aliases: tuple[str, ...] = ()) -> TableModel:
    """What a table says of its model; `aliases` are names of models with the same shape."""
    fields = {field: getattr(shape, field) for field in ModelShape.__slots__}
    return TableModel(name=name, shape_hash=shape.shape_hash, aliases=aliases, **fields)


def require_comparable(runs: Sequence[MeasuredRun]) -> None:
    """InputError naming both runs where they can't be united, or the one that is unfinished."""
    if not runs:
        raise InputError("fit: no run was given")
    first = runs[0]
    seen: dict[str, str] = {}
    for run in runs:
        if not run.is_finished or run.content_hash is None:
            raise InputError(f"{run.run}: unfinished; run the same routing measure again before a fit")
        if run.content_hash in seen:
            both = f"{seen[run.content_hash]} and {run.run}"
            raise InputError(f"{both}: the same counts twice (content hash {run.content_hash[:12]}); name one")
        seen[run.content_hash] = run.run
        for what, mine, theirs in _choices(first, run):
            if mine != theirs:
                raise InputError(f"{first.run} and {run.run}: {what} {mine} against {theirs}; fit them apart")


def _choices(first: MeasuredRun, run: MeasuredRun) -> Iterator[tuple[str, object, object]]:
    for name in ModelShape.__slots__:
        yield name, getattr(first.shape, name), getattr(run.shape, name)
    for name in SAME_IN_ALL:
        yield name, getattr(first, name), getattr(run, name)


def _cells(
    runs: Sequence[MeasuredRun], counts: Sequence[Counts], floors: Mapping[int, Sequence[Floor]], *, by_layer: bool
) -> list[Cell]:
    by_place = [{(worsts.ep, worsts.batch_tokens): worsts for worsts in run.observed} for run in runs]
    sizes = sorted({size for _, size in by_place[0]})
    levels = {
        size: tuple(_resampled(run, of_run, size, by_layer=by_layer) for run, of_run in zip_longest(runs, counts))
        for size in sizes
    }
    return [
        Cell(
            runs=tuple(runs),
            observed=tuple(places[ep, size] for places in by_place),
            resampled=levels[size],
            floors=tuple(floor for floor in floors.get(ep, ()) if _applies(floor, size, sizes)),
        )
        for ep, size in sorted(by_place[0])
    ]


def _resampled(run: MeasuredRun, counts: Counts | None, batch_tokens: int, *, by_layer: bool) -> Resampled | None:
    here = [worsts for worsts in run.observed if worsts.batch_tokens == batch_tokens]
    if counts is None or not is_enough(len(here[0].worsts), counts):
        return None
    eps = sorted(worsts.ep for worsts in here)
    return resample(counts, batch_tokens=batch_tokens, eps=eps, by_layer=by_layer, content_hash=run.content_hash or "")


def _applies(floor: Floor, size: int, sizes: Sequence[int]) -> bool:
    """At the size that a lookup gives for its tokens: the largest that is not above them, else the smallest."""
    return floor.batch_tokens is None or size == batch_size_for(sizes, floor.batch_tokens)


def _is_fitted(cell: Cell) -> bool:
    return any(len(worsts.worsts) >= MIN_FITTED_BATCHES for worsts in cell.observed)


def _held_out(runs: Sequence[MeasuredRun], counts: Sequence[Counts], cells: Sequence[Cell]) -> dict[Place, list[HeldOut]]:
    """Halves and strata of each run, then each run against the fit without its policy; at sizes where any was resampled."""
    found: dict[Place, list[HeldOut]] = {}
    eps = sorted({cell.ep for cell in cells})
    resampled = sorted({cell.batch_tokens for cell in cells if cell.is_resampled}, reverse=True)
    for number, (run, of_run) in enumerate(zip(runs, counts, strict=False)):
        levels = {cell.batch_tokens: known for cell in cells if (known := cell.resampled[number]) is not None}
        halves = judged_halves(run, of_run, sizes=resampled, eps=eps) if resampled else ()
        for place, one in (*halves, *judged_strata(run, of_run, levels, eps=eps)):
            found.setdefault(place, []).append(one)
    for run, of_run in zip(runs, counts, strict=False):
        without = [cell.without_policy(run.weights_sha256) for cell in cells if cell.batch_tokens in resampled]
        others = [cell for cell in without if cell is not None and cell.worst is not None]
        methods = {cell.batch_tokens: cell.method for cell in others}
        fitted = Fitted(raws={(cell.batch_tokens, cell.ep): cell.raw for cell in others}, methods=methods)
        batches = {size: real_batches(of_run, batch_tokens=size, eps=eps) for size in methods}
        for place, one in hold(run, fitted, batches, kind="policy", part=run.label):
            found.setdefault(place, []).append(one)
    return found


def _fitted_entries(
    cells: Sequence[Cell], same: dict[str, Parameter], held_out: Mapping[Place, Sequence[HeldOut]]
) -> Iterator[Entry]:
    """The largest batches first. A run with a single batch of a size has its say: what was seen is never left below."""
    shape = cells[0].runs[0].shape
    raws = {(cell.batch_tokens, cell.ep): cell.raw for cell in cells}
    allowed = stepped(raws, num_experts=shape.num_experts, top_k=shape.top_k)
    reference = max(cell.batch_tokens for cell in cells)
    for cell in sorted(cells, key=lambda cell: (-cell.batch_tokens, cell.ep)):
        resampled = RESAMPLED if cell.is_resampled else {}
        is_thin = any(worsts.worsts and one is None for worsts, one in zip(cell.observed, cell.resampled, strict=True))
        headroom: dict[str, Parameter] = {"headroom": HEADROOM, "reference_batch_tokens": reference} if is_thin else {}
        fitted = allowed[cell.batch_tokens, cell.ep]
        yield Entry(
            ep=cell.ep,
            batch_tokens=cell.batch_tokens,
            layer="all",
            allowance=fitted.allowance,
            status="fitted" if cell.is_resampled else "headroom",
            evidence=counted_evidence(
                cell,
                fitted,
                parameters={**same, **resampled, **headroom},
                held_out=tuple(held_out.get((cell.batch_tokens, cell.ep), ())),
            ),
        )


def _proven_entry(cell: Cell, parameters: dict[str, Parameter]) -> Entry:
    evidence = proven_evidence(cell, parameters=parameters)
    return Entry(
        ep=cell.ep, batch_tokens=cell.batch_tokens, layer="all", allowance=evidence.ceiling, status="proven", evidence=evidence
    )


def _cautions(entries: Sequence[Entry], sizes: Sequence[int], fitted_sizes: Sequence[int]) -> Iterator[Caution]:
    if not fitted_sizes:
        text = (
            f"no run has two full batches of any size, the entries at {entries[0].batch_tokens} tokens hold only what is proven"
        )
        yield Caution(code="only_proven", message=text)
    for size in sizes if fitted_sizes else ():
        if size not in fitted_sizes:
            yield Caution(code="size_left_out", message=f"batch_tokens={size}: no run has two full batches, no entry")
    told: set[tuple[int, str]] = set()
    for entry in entries if fitted_sizes else ():
        for warning in entry.evidence.warnings:
            if (entry.batch_tokens, warning) not in told:
                told.add((entry.batch_tokens, warning))
                code, _, sentence = warning.partition(": ")
                yield Caution(code=code, message=f"batch_tokens={entry.batch_tokens}: {sentence}")
