"""The views that a person asks: every run's tables under one name each, with the run and its label in front."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from routing.core.observed import Caution
from routing.query.checks import check_tables, require_no_violation
from routing.query.imbalance import Tabulated
from routing.query.runner import as_pattern, one_line_errors
from routing.query.tables import TREE_TABLES, opened_tables
from routing.store.run import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

STORED_VIEWS = (*TREE_TABLES, "loads")
CUT_VIEWS = {"batches": "batches", "rank_loads": "rank_loads", "imbalance": "layer_imbalances"}  # to the tables they show
SQL_VIEWS = (*STORED_VIEWS, *CUT_VIEWS)


def stored_tables(run: Run) -> "tuple[dict[str, pa.Table], tuple[Caution, ...]]":
    """(what of a run's stored tables must be held in memory, warnings) once its checks hold; mostly nothing must."""
    with opened_tables(run, block_experts=run.manifest.shape.num_experts) as (con, cautions):
        require_no_violation(run, check_tables(con, run))
        return _distinct(con, cautions), cautions


def cut_tables(tables: Tabulated) -> "dict[str, pa.Table]":
    """The cut views of one run by name, out of tables that were filled for it, with what `stored_tables` holds."""
    cut = {view: tables.con.table(table).to_arrow_table() for view, table in CUT_VIEWS.items()}
    return cut | _distinct(tables.con, tables.cautions)


def _distinct(con: "DuckDBPyConnection", cautions: Sequence[Caution]) -> "dict[str, pa.Table]":
    """Loads that two parts hold count once; as they are stored they would count twice."""
    is_repeated = any(one.code == "repeated_loads" for one in cautions)
    return {"loads": con.table("loads").to_arrow_table()} if is_repeated else {}


def create_views(con: "DuckDBPyConnection", runs: "Sequence[tuple[Run, Mapping[str, pa.Table]]]") -> None:
    """Names the runs' tables in `con`: those held in memory, else the stored ones by their parts; runs are never summed."""
    for view in SQL_VIEWS:
        shown = [_shown(con, run, view, held) for run, held in runs]
        known = [one for one in shown if one is not None]
        if known:
            together = known[0]
            for one in known[1:]:
                together = together.union(one)
            together.create_view(view)


def _shown(con: "DuckDBPyConnection", run: Run, view: str, held: "Mapping[str, pa.Table]") -> "DuckDBPyRelation | None":
    from duckdb import ConstantExpression, StarExpression

    with one_line_errors(view):
        if view in held:
            rows = con.from_arrow(held[view])
        elif view in STORED_VIEWS:
            rows = con.read_parquet([as_pattern(path) for path in run.part_paths(view)])
        else:
            return None
        run_name, label = (ConstantExpression(text) for text in (run.name, run.manifest.label))
        return rows.select(run_name.alias("run"), label.alias("label"), StarExpression())
