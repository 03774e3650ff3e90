"""What must hold in every run: queries that must return no rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routing.core.errors import CheckFailedError, DamagedDataError
from routing.query.runner import ask
from routing.query.tables import TREE_TABLES, opened_tables
from routing.store.run import Run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TREE_CHECKS = (
    "segments_numbered",
    "segments_follow_parents",
    "trajectories_numbered",
    "paths_follow_parents",
    "trajectory_tokens",
    "segments_used",
)
LOADS_CHECKS = ("loads_in_range", "loads_counted_once", "loads_dense", "loads_within_tokens", "rows_conserved")
RUN_CHECKS = (*TREE_CHECKS, *LOADS_CHECKS)  # of every run that is opened; nested_ep is of tables cut from it
NUM_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """One check: `first` are its first violations as `column=value` text, empty where it holds."""

    name: str
    num_violations: int
    first: tuple[str, ...]


def run_checks(run: Run) -> tuple[CheckResult, ...]:
    """Every check of a run's four tables; none where the run has no tables yet.

    Segments without any load are pending in an unfinished run and a violation in a finished one.
    """
    if not all(run.part_paths(table) for table in TREE_TABLES):
        return ()
    with opened_tables(run, block_experts=run.manifest.shape.num_experts) as (con, _):
        return check_tables(con, run)


def require_checks(run: Run) -> tuple[CheckResult, ...]:
    """`run_checks`, or the first violation as an error that names its layer and segment."""
    results = run_checks(run)
    require_no_violation(run, results)
    return results


def check_tables(con: "DuckDBPyConnection", run: Run) -> tuple[CheckResult, ...]:
    """Every check over tables that are already open."""
    shape = run.manifest.shape
    moe_layers = list(shape.moe_layers)
    params: dict[str, dict[str, Any]] = {
        "loads_in_range": {"moe_layers": moe_layers},
        "loads_dense": {
            "moe_layers": moe_layers,
            "num_experts": shape.num_experts,
            "is_finished": run.manifest.state == "finished",
        },
        "rows_conserved": {"top_k": shape.top_k},
    }
    return tuple(check(con, name, **params.get(name, {})) for name in RUN_CHECKS)


def check(con: "DuckDBPyConnection", name: str, **params: Any) -> CheckResult:
    """Runs `checks/NAME.sql` and counts what it returns."""
    violations = ask(con, f"checks/{name}.sql", **params)
    first = [" ".join(f"{column}={value}" for column, value in row.items()) for row in violations[:NUM_SHOWN]]
    return CheckResult(name=name, num_violations=len(violations), first=tuple(first))


def require_no_violation(run: Run, results: tuple[CheckResult, ...]) -> None:
    """CheckFailedError for the first check that doesn't hold; DamagedDataError where a segment was counted twice, differently."""
    for result in results:
        if result.num_violations:
            kind = DamagedDataError if result.name == "loads_counted_once" else CheckFailedError
            places = f"{result.num_violations} places, the first" if result.num_violations > 1 else "one place"
            raise kind(f"{run.folder}: check {result.name} fails in {places}: {result.first[0]}; measure this run again")
