"""`routing sql`: a question to runs, as views that carry each run's name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from routing.core.errors import InputError
from routing.core.placement import CONTIGUOUS, Placement
from routing.query.batches import Order
from routing.query.guarded import Limits, Question, answer, guarded, read_question
from routing.query.imbalance import tabulated
from routing.query.views import CUT_VIEWS, SQL_VIEWS, create_views, cut_tables, stored_tables
from routing.stages.imbalance import as_lines, ep_sizes_of, open_distinct
from routing.store.run import Run, require_finished

if TYPE_CHECKING:
    import pyarrow as pa

_NAMING = frozenset({"run", "label"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlAnswer:
    """The rows as an Arrow table, a column a name; `warnings` one line each."""

    rows: "pa.Table"
    warnings: tuple[str, ...]


class Session:
    """Runs that were opened and verified once, to be asked more than once; their batches are cut by the first who needs them."""

    def __init__(
        self,
        runs: tuple[Run, ...],
        *,
        eps: tuple[int, ...] | None,
        batch_sizes: tuple[int, ...],
        view: str,
        order: Order,
        placement: Placement,
        limits: Limits,
    ) -> None:
        self.runs = runs
        self.limits = limits
        self._eps, self._batch_sizes, self._view, self._order, self._placement = eps, batch_sizes, view, order, placement
        self._held: dict[str, dict[str, pa.Table]] = {}  # tables in memory, by the run's name
        self._said: dict[str, tuple[str, ...]] = {}

    def prepare(self, text: str) -> Question:
        """One SELECT over the views, once the runs are checked and cut for it; no limit holds for that.

        InputError for anything else, and for a query that joins rows of several runs unnoticed.
        """
        question = read_question(text)
        if len(self.runs) > 1:
            _require_joined_by_run(question)
        for run in self.runs:
            self._hold(run, is_cut=any(question.wants(view) for view in CUT_VIEWS))
        return question

    def ask(self, question: Question) -> SqlAnswer:
        """The rows of a prepared question.

        InputError for what DuckDB refuses and for rows of several runs taken together unnoticed; StorageError at a limit.
        """
        parts = [path for run in self.runs for table in SQL_VIEWS for path in run.part_paths(table)]
        with guarded(parts, self.limits) as con:
            create_views(con, [(run, self._held[run.name]) for run in self.runs])
            rows = answer(con, question, self.limits)
        if len(self.runs) > 1:
            _require_told_apart(question, rows.column_names)
        return SqlAnswer(rows=rows, warnings=tuple(line for run in self.runs for line in self._said[run.name]))

    def _hold(self, run: Run, *, is_cut: bool) -> None:
        """Checks a run before anything is said of it, and keeps its cut tables where a question wants them."""
        if run.name in self._held and (not is_cut or "batches" in self._held[run.name]):
            return
        if not is_cut:
            self._held[run.name], cautions = stored_tables(run)
            self._said[run.name] = (*run.notices, *as_lines(cautions))
            return
        eps, left_out = ep_sizes_of(run, self._eps, self._placement)
        with tabulated(
            run, eps=eps, batch_sizes=self._batch_sizes, view=self._view, order=self._order, placement=self._placement
        ) as tables:
            self._held[run.name] = cut_tables(tables)
            self._said[run.name] = (*run.notices, *left_out, *as_lines(tables.cautions))


def open_session(
    folders: Sequence[Path],
    *,
    eps: tuple[int, ...] | None,
    batch_sizes: tuple[int, ...],
    view: str,
    order: Order,
    limits: Limits,
    placement: Placement = CONTIGUOUS,
) -> Session:
    """Opens finished runs of distinct names; nothing is computed before it is asked for."""
    runs = tuple(open_distinct(folders))
    for run in runs:
        require_finished(run)
    names = [run.name for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{twice}: two runs of this name, `run` would not tell them apart; rename a folder or ask one")
    return Session(runs, eps=eps, batch_sizes=batch_sizes, view=view, order=order, placement=placement, limits=limits)


def _require_joined_by_run(question: Question) -> None:
    for tables, compared in question.joins:
        if len(tables.intersection(SQL_VIEWS)) > 1 and not compared & _NAMING:
            pair = " and ".join(sorted(tables.intersection(SQL_VIEWS)))
            raise InputError(f"sql: {pair} of several runs are joined across runs; join on run too: USING (run, ...)")


def _require_told_apart(question: Question, columns: Sequence[str]) -> None:
    told = _NAMING & (question.columns | set(columns))
    if not told and not question.is_of_schema and question.tables.intersection(SQL_VIEWS):
        raise InputError("sql: rows of several runs would be taken together; GROUP BY run, filter by it, or ask one run")
