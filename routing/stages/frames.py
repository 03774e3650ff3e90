"""Runs in Python, as Polars frames: what `routing.open_run` opens, and `routing.fit`."""

import operator
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routing.core.allowance import AllowanceTable
from routing.core.batches import BATCH_SIZES, require_view
from routing.core.errors import InputError
from routing.core.placement import PLACEMENT
from routing.query.batches import CORPUS_ORDER, Order
from routing.query.imbalance import tabulated
from routing.query.runner import run_sql
from routing.query.views import stored_tables
from routing.stages.fit import fitted, logged_floors
from routing.stages.imbalance import as_lines, ep_sizes_of, open_distinct
from routing.stages.kept import kept_imbalance_rows
from routing.store import run as store
from routing.store.allowances import rewrite_table
from routing.store.placements import find_placement

if TYPE_CHECKING:
    import polars as pl

Sizes = int | Sequence[int]
_TEXT = ("run", "label", "view")
_RATIOS = ("worst_imbalance", "mean_over_layers", "pooled_over_layers")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Run:
    """A run that `routing measure` wrote, its parts verified. Frames are made anew by each call and are the caller's.

    Indices are 0-based; ratios are busiest rank / even share, 1.0 is even; what no full batch defines is null. Warnings come as
    Python's.
    """

    stored: store.Run

    def __repr__(self) -> str:
        return f"routing.open_run({str(self.stored.folder)!r})"

    @property
    def name(self) -> str:
        """The folder's name, which is the frames' `run`."""
        return self.stored.name

    @property
    def label(self) -> str:
        """What tables call the policy."""
        return self.stored.manifest.label

    def imbalance(
        self,
        *,
        ep: Sizes | None = None,
        batch_tokens: Sizes = BATCH_SIZES,
        view: str = "packed",
        order: Order = CORPUS_ORDER,
        by_layer: bool = False,
        placement: str | os.PathLike[str] = PLACEMENT,
    ) -> "pl.DataFrame":
        """One row per EP size and batch size, as `routing imbalance` has them; with `by_layer` one per MoE layer too.

        `ep` is one size, several, or those of 2, 4, 8 that divide the experts; `order` is "corpus" or a seed. InputError for
        what can't be asked of this run, CheckFailedError where its counts don't hold.
        """
        import polars as pl

        require_view(view, name="view")
        placed = find_placement(placement)
        eps, left_out = ep_sizes_of(self.stored, None if ep is None else _several(ep, "ep"), placed)
        rows, cautions = kept_imbalance_rows(
            self.stored,
            eps=eps,
            batch_sizes=_several(batch_tokens, "batch_tokens"),
            view=view,
            order=order,
            by_layer=by_layer,
            placement=placed,
        )
        _warn([*left_out, *as_lines(cautions)])
        return pl.DataFrame(rows, schema={name: _type(name) for name in rows[0]}, orient="row")

    def worst(
        self,
        *,
        ep: Sizes | None = None,
        batch_tokens: Sizes = BATCH_SIZES,
        view: str = "packed",
        order: Order = CORPUS_ORDER,
        placement: str | os.PathLike[str] = PLACEMENT,
    ) -> "pl.DataFrame":
        """One row per full batch with its worst layer and rank, the largest imbalance first; arguments as of `imbalance`."""
        import polars as pl

        require_view(view, name="view")
        placed = find_placement(placement)
        eps, left_out = ep_sizes_of(self.stored, None if ep is None else _several(ep, "ep"), placed)
        sizes = _several(batch_tokens, "batch_tokens")
        with tabulated(self.stored, eps=eps, batch_sizes=sizes, view=view, order=order, placement=placed) as tables:
            _warn([*left_out, *as_lines(tables.cautions)])
            return pl.DataFrame(run_sql(tables.con, "sql/worst_batches.sql").to_arrow_table())

    def loads(self) -> "pl.LazyFrame":
        """Routed rows of every segment, MoE layer and expert, zero or not; lazy, since a large run has tens of millions."""
        import polars as pl

        held, cautions = stored_tables(self.stored)
        _warn(as_lines(cautions))
        if "loads" in held:
            return pl.DataFrame(held["loads"]).lazy()
        return pl.scan_parquet([path.absolute() for path in self.stored.part_paths("loads")], glob=False)

    def segments(self) -> "pl.DataFrame":
        """Every distinct segment with its tokens and the segment that it follows."""
        return self._table("segments")

    def trajectories(self) -> "pl.DataFrame":
        """Every trajectory with its unit, stratum, source and tokens."""
        return self._table("trajectories")

    def paths(self) -> "pl.DataFrame":
        """The segments of every trajectory, in order."""
        return self._table("paths")

    def _table(self, name: str) -> "pl.DataFrame":
        import polars as pl

        return pl.DataFrame(self.stored.read(name))


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Opens a run and verifies every part; DamagedDataError names the one that is not what was written, InputError no run."""
    run = store.open_run(folder)
    _warn(run.notices)
    return Run(stored=run)


def fit(
    runs: "str | os.PathLike[str] | Run | Sequence[str | os.PathLike[str] | Run]",
    *,
    ep: Sizes | None = None,
    batch_tokens: Sizes = BATCH_SIZES,
    order: Order = CORPUS_ORDER,
    per_layer: bool = False,
    floors: Sequence[str | os.PathLike[str]] = (),
    placement: str | os.PathLike[str] = PLACEMENT,
    out: str | os.PathLike[str] | None = None,
) -> AllowanceTable:
    """The allowances that runs of one or several policies support, as `routing fit` makes them; written where `out` names a file.

    `floors` are logs of a guard. Counts of several runs are never summed.
    """
    named = [runs] if isinstance(runs, str | os.PathLike | Run) else runs
    placed = find_placement(placement)
    table, said = fitted(
        open_distinct([one.stored.folder if isinstance(one, Run) else Path(one) for one in named]),
        eps=None if ep is None else _several(ep, "ep"),
        batch_sizes=_several(batch_tokens, "batch_tokens"),
        order=order,
        by_layer=per_layer,
        floors_for=logged_floors(tuple(map(Path, floors)), placed),
        placement=placed,
    )
    if out is not None:
        rewrite_table(Path(out), table)
    _warn(said)
    return table


def _several(sizes: Sizes, name: str) -> tuple[int, ...]:
    asked = sizes if isinstance(sizes, Sequence) else (sizes,)
    try:
        found = tuple(operator.index(one) for one in asked)  # NumPy's whole numbers are welcome
    except TypeError:
        found = ()
    if not found or len(set(found)) != len(found) or any(isinstance(one, bool) for one in asked):
        raise InputError(f"{name}: {sizes!r:.60} is neither a whole number nor several distinct ones")
    return found


def _type(name: str) -> Any:
    import polars as pl

    return pl.String if name in _TEXT else pl.Float64 if name in _RATIOS else pl.Int64


def _warn(said: Iterable[str]) -> None:
    for line in dict.fromkeys(said):
        warnings.warn(line, stacklevel=3)
