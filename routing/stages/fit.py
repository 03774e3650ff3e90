"""`routing fit`: finished runs in, a table of allowances with its evidence out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from routing.core.allowance import AllowanceTable, Floor, Generated
from routing.core.placement import CONTIGUOUS, Placement
from routing.fit.counts import Counts
from routing.fit.table import fit_runs, require_comparable
from routing.query.imbalance import observed_run, tabulated
from routing.query.loads import segment_loads
from routing.stages.floors import read_floors
from routing.stages.imbalance import as_lines, ep_sizes_of, open_distinct
from routing.stages.provenance import tool_commit, tool_version, utc_now
from routing.store.allowances import rewrite_table
from routing.store.content import require_content
from routing.store.run import Run

VIEW = "packed"  # what training dispatches, and what is resampled
FloorsFor = Callable[..., dict[int, tuple[Floor, ...]]]  # of shape and eps, both by name


@dataclass(frozen=True, kw_only=True, slots=True)
class FitAnswer:
    """The table as plain values, decimals as numbers; `warnings` one line each."""

    table: dict[str, Any]
    warnings: tuple[str, ...]


def fit(
    folders: Sequence[Path],
    *,
    out: Path,
    eps: tuple[int, ...] | None,
    batch_sizes: Sequence[int],
    order: str | int,
    by_layer: bool = False,
    floor_logs: Sequence[Path] = (),
    placement: Placement = CONTIGUOUS,
) -> FitAnswer:
    """`fitted`, and writes `out` whole or not at all; a table that it holds already is replaced, a person's comments stay."""
    table, warnings = fitted(
        open_distinct(folders),
        eps=eps,
        batch_sizes=batch_sizes,
        order=order,
        by_layer=by_layer,
        floors_for=logged_floors(floor_logs, placement),
        placement=placement,
    )
    rewrite_table(out, table)
    return FitAnswer(table=plain(table), warnings=warnings)


def fitted(
    runs: Sequence[Run],
    *,
    eps: tuple[int, ...] | None,
    batch_sizes: Sequence[int],
    order: str | int,
    by_layer: bool,
    floors_for: FloorsFor,
    placement: Placement,
) -> tuple[AllowanceTable, tuple[str, ...]]:
    """(the table, warnings) over the union of the runs' policies, never over summed counts.

    `floors_for` gives what no allowance is left below by EP size, once model and EP sizes are known.
    """
    measured, counts, warnings = [], [], [notice for run in runs for notice in run.notices]
    for run in runs:
        require_content(run)  # the table names the counts it rests on by this hash
        sizes, left_out = ep_sizes_of(run, eps, placement)
        with tabulated(run, eps=sizes, batch_sizes=batch_sizes, view=VIEW, order=order, placement=placement) as tables:
            measured.append(observed_run(run, tables, eps=sizes, view=VIEW, order=order))
            counts.append(Counts(**segment_loads(tables, eps=sizes, layers=run.manifest.shape.moe_layers)))
            warnings += [*left_out, *as_lines(tables.cautions)]
    require_comparable(measured)
    shape, fitted_eps = measured[0].shape, sorted({worsts.ep for worsts in measured[0].observed})
    floors = floors_for(shape=shape, eps=fitted_eps)
    generated = Generated(tool_version=tool_version(), tool_commit=tool_commit()[0], generated_at=utc_now())
    model_name = runs[0].manifest.policy.name
    table, cautions = fit_runs(
        measured,
        counts=counts,
        model_name=model_name,
        generated=generated,
        floors=floors,
        by_layer=by_layer,
        placement=placement.name,
    )
    return table, tuple(dict.fromkeys([*warnings, *as_lines(cautions)]))


def logged_floors(logs: Sequence[Path], placement: Placement) -> FloorsFor:
    """The floors of a guard's logs, whose exceedances no allowance is left below."""
    return partial(read_floors, tuple(logs), placement=placement.name)


def plain(table: AllowanceTable) -> dict[str, Any]:
    """The table as JSON holds it."""
    body: dict[str, Any] = json.loads(json.dumps(asdict(table), default=float))
    return body
