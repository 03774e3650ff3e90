"""How uneven the ranks of a run are: worst, mean over layers and pooled over layers, side by side."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from routing.core.observed import BatchWorst, Caution, ExpertLoad, MeasuredRun, ObservedWorsts
from routing.core.placement import require_ep_size
from routing.query.batches import CORPUS_ORDER, Batches, Order, Steps, cut_batches, order_steps, rank_trajectories
from routing.query.checks import check, check_tables, require_no_violation
from routing.query.runner import ask, keep, run_sql
from routing.query.tables import opened_tables
from routing.store.run import Run, require_finished

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NUM_TOP_EXPERTS = 5
_VALUES = ("worst_imbalance", "worst_layer", "worst_batch", "worst_rank", "mean_over_layers", "pooled_over_layers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tabulated:
    """A checked run cut at every size: the tables of `sql/` up to `batch_imbalances` are in `con`."""

    con: "DuckDBPyConnection"
    steps: Steps
    batches: tuple[Batches, ...]
    cautions: tuple[Caution, ...]


def imbalance_rows(
    run: Run,
    *,
    eps: Sequence[int],
    batch_sizes: Sequence[int],
    view: str = "packed",
    order: Order = CORPUS_ORDER,
    by_layer: bool = False,
) -> tuple[list[dict[str, Any]], tuple[Caution, ...]]:
    """(one row per EP size and batch size, warnings); with `by_layer` one per MoE layer too, which then has a `layer`.

    Imbalances are busiest x ep / rows, 1.0 is even; a size without a full batch has num_batches 0 and nulls. Indices are
    0-based. Raises InputError for an EP size that doesn't divide the experts or an unfinished run, CheckFailedError where
    a check of the run doesn't hold.
    """
    query = "sql/imbalance_by_layer.sql" if by_layer else "sql/imbalance.sql"
    layers: Sequence[int | None] = run.manifest.shape.moe_layers if by_layer else (None,)
    with tabulated(run, eps=eps, batch_sizes=batch_sizes, view=view, order=order) as tables:
        answers = {(row["ep"], row["batch_tokens"], row.get("layer")): row for row in ask(tables.con, query)}
    rows = []
    for ep in eps:
        for batches in tables.batches:
            for layer in layers:
                answer = answers.get((ep, batches.batch_tokens, layer), {})
                row = {"run": run.name, "label": run.manifest.label, "ep": ep, "batch_tokens": batches.batch_tokens, "view": view}
                row |= {"layer": layer} if by_layer else {}
                row |= {"num_batches": batches.num_batches, "num_tokens": batches.num_tokens}
                rows.append(row | {name: answer.get(name) for name in _VALUES})
    return rows, tables.cautions


def measured_run(
    run: Run, *, eps: Sequence[int], batch_sizes: Sequence[int], view: str = "packed", order: Order = CORPUS_ORDER
) -> tuple[MeasuredRun, tuple[Caution, ...]]:
    """(the run as the fit takes it, warnings); raises as `imbalance_rows` does."""
    with tabulated(run, eps=eps, batch_sizes=batch_sizes, view=view, order=order) as tables:
        return observed_run(run, tables, eps=eps, view=view, order=order), tables.cautions


def observed_run(run: Run, tables: Tabulated, *, eps: Sequence[int], view: str, order: Order) -> MeasuredRun:
    """The run as the fit takes it, from tables that hold these EP sizes in this view and order."""
    manifest = run.manifest
    units = [row["unit"] for row in ask(tables.con, "sql/trajectories.sql")]
    return MeasuredRun(
        run=run.name,
        label=manifest.label,
        policy=manifest.policy.name,
        revision=manifest.policy.revision,
        weights_sha256=manifest.policy.weights_sha256,
        shape=manifest.shape,
        dtype=manifest.settings.dtype,
        segment_tokens=manifest.settings.segment_tokens,
        view=view,
        order=str(order),
        content_hash=manifest.content_hash,
        corpus_hash=manifest.corpus.corpus_hash,
        is_finished=manifest.state == "finished",
        observed=tuple(_observed(run, tables, ep, batches, units) for ep in eps for batches in tables.batches),
    )


@contextlib.contextmanager
def tabulated(run: Run, *, eps: Sequence[int], batch_sizes: Sequence[int], view: str, order: Order) -> Iterator[Tabulated]:
    """Opens a finished run, holds its checks, cuts it and fills the tables that the answers are read from."""
    require_finished(run)
    num_experts = run.manifest.shape.num_experts
    for ep in eps:
        require_ep_size(ep, num_experts)
    num_blocks = math.lcm(*eps)
    with opened_tables(run, block_experts=num_experts // num_blocks) as (con, cautions):
        require_no_violation(run, check_tables(con, run))
        steps = read_steps(con, order)
        batches = tuple(cut_batches(steps, batch_tokens=size, view=view) for size in batch_sizes)
        fill_imbalances(con, batches, eps=eps, num_blocks=num_blocks)
        require_no_violation(run, (check(con, "nested_ep"),))
        cautions = (*_recorded(run), *cautions, *(caution for cut in batches for caution in _cautions(run, cut)))
        yield Tabulated(con=con, steps=steps, batches=batches, cautions=cautions)


def read_steps(con: "DuckDBPyConnection", order: Order) -> Steps:
    """The steps of a run whose checks hold, in the order asked for."""
    columns = run_sql(con, "sql/steps.sql").fetchnumpy()  # pyarrow's to_numpy would import pandas, a third of a second
    steps = Steps(trajectory_ids=columns["trajectory_id"], segment_ids=columns["segment_id"], num_tokens=columns["num_tokens"])
    hashes = [row["trajectory_hash"] for row in ask(con, "sql/trajectories.sql")]
    return order_steps(steps, rank_trajectories(hashes, order))


def fill_imbalances(con: "DuckDBPyConnection", batches: Sequence[Batches], *, eps: Sequence[int], num_blocks: int) -> None:
    """Fills `batches`, `rank_loads`, `layer_imbalances` and `batch_imbalances` from `block_loads`."""
    sizes = [np.full(len(cut.batch), cut.batch_tokens, dtype=np.int64) for cut in batches]
    columns = {name: np.concatenate([getattr(cut, name) for cut in batches]) for name in ("batch", "segment_id", "copies")}
    keep(con, "batches", "sql/batches.sql", batch_tokens=np.concatenate(sizes), **columns)
    keep(con, "rank_loads", "sql/rank_loads.sql", eps=list(eps), num_blocks=num_blocks)
    keep(con, "layer_imbalances", "sql/layer_imbalances.sql")
    keep(con, "batch_imbalances", "sql/batch_imbalances.sql")


def _observed(run: Run, tables: Tabulated, ep: int, batches: Batches, units: Sequence[str]) -> ObservedWorsts:
    size = {"batch_tokens": batches.batch_tokens}
    worsts = tuple(BatchWorst(**row) for row in ask(tables.con, "sql/batch_worsts.sql", ep=ep, **size))
    top_experts: tuple[ExpertLoad, ...] = ()
    if worsts:
        worst = max(worsts, key=lambda one: (one.imbalance(ep), -one.batch))
        rank_experts = run.manifest.shape.num_experts // ep
        place = {"batch": worst.batch, "layer": worst.layer, "num_wanted": NUM_TOP_EXPERTS}
        place |= {"first_expert": worst.rank * rank_experts, "last_expert": (worst.rank + 1) * rank_experts - 1}
        top_experts = tuple(ExpertLoad(**row) for row in ask(tables.con, "sql/top_experts.sql", **size, **place))
    return ObservedWorsts(
        ep=ep,
        batch_tokens=batches.batch_tokens,
        num_tokens=batches.num_tokens,
        dropped_tokens=batches.dropped_tokens,
        units=frozenset(units[row] for row in np.unique(tables.steps.trajectory_ids[: batches.num_steps]).tolist()),
        worsts=worsts,
        top_experts=top_experts,
    )


def _recorded(run: Run) -> Iterator[Caution]:
    """What loads that another engine recorded can't tell."""
    recording, layers = run.manifest.recording, run.manifest.shape.moe_layers
    if recording is None:
        return
    by = recording.engine or "another engine"
    unknown = f"; not known: {', '.join(recording.unknown)}" if recording.unknown else ""
    yield Caution(code="recorded", message=f"{run.name}: loads recorded by {by} and imported, not measured{unknown}")
    if missing := recording.missing_layers:
        where = f"{run.name}: worst of {len(layers)} of {len(layers) + len(missing)} MoE layers"
        message = f"{where}; not recorded: {_listed(missing)}"
        yield Caution(code="layers_missing", message=message)
    elif missing is None:
        message = f"{run.name}: worst of the {len(layers)} layers in the files; nobody said whether the model has more"
        yield Caution(code="layers_unknown", message=message)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers[:8])) + (f" and {len(layers) - 8} more" if len(layers) > 8 else "")


def _cautions(run: Run, batches: Batches) -> Iterator[Caution]:
    where = f"{run.name}: batch_tokens={batches.batch_tokens}"
    if batches.num_batches == 0:
        message = f"{where}: no full batch, the run holds {batches.dropped_tokens} tokens of this view"
        yield Caution(code="no_full_batch", message=message)
    elif batches.dropped_tokens:
        message = f"{where}: the last {batches.dropped_tokens} tokens fill no batch and are dropped"
        yield Caution(code="partial_batch_dropped", message=message)
    if batches.num_batches == 1:
        yield Caution(code="one_batch", message=f"{where}: one full batch, nothing says how the next would differ")
