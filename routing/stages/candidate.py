"""The fit of a refresh: made into a file beside the runs, and only where that file doesn't rest on the very same already."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from routing.core.allowance import AllowanceTable
from routing.core.errors import DamagedDataError, InputError
from routing.core.refresh_plan import RefreshPlan
from routing.stages.fit import fit
from routing.stages.provenance import code_hash, versions
from routing.store.allowances import read_table
from routing.store.files import sha256_of
from routing.store.marks import Mark, read_mark, write_mark
from routing.store.run import MANIFEST_NAME, run_name

_FITTING_ROOMS = ("core", "fit", "query", "store")
_FITTING = ("routing", "numpy", "scipy", "duckdb")  # whose versions can change an allowance


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """The fitted table and where it is; `warnings` are those of its fit, `is_new` tells whether it was fitted by this call."""

    path: Path
    table: AllowanceTable
    warnings: tuple[str, ...]
    is_new: bool


def candidate_path(plan_path: Path, plan: RefreshPlan) -> Path:
    """Beside the plan's first run, named after the plan: `runs/retail.refresh.yaml` for `pipelines/retail.yaml`."""
    return Path(plan.runs[0].out).parent / f"{plan_path.stem}.refresh.yaml"


def candidate(path: Path, plan: RefreshPlan) -> Candidate:
    """Fits the plan's finished runs into `path`, unless it holds that fit."""
    made_from, mark = _made_from(plan), read_mark(path)
    if mark is not None and mark.made_from == made_from:
        table = _held(path)
        if table is not None and table.content_hash == mark.content_hash:
            return Candidate(path=path, table=table, warnings=mark.warnings, is_new=False)
    folders = [Path(run.out) for run in plan.runs]
    answer = fit(folders, out=path, eps=plan.ep, batch_sizes=plan.batch_tokens, order=plan.order, by_layer=plan.per_layer)
    table = read_table(path)
    write_mark(path, Mark(made_from=made_from, content_hash=table.content_hash, warnings=answer.warnings))
    return Candidate(path=path, table=table, warnings=answer.warnings, is_new=True)


def _held(path: Path) -> AllowanceTable | None:
    try:
        return read_table(path)
    except (InputError, DamagedDataError):
        return None  # fitting again mends it


def _made_from(plan: RefreshPlan) -> str:
    """sha256 over the runs' manifests (which name every count by its hash), the parameters and the code of a fit."""
    body = {
        "runs": [(run_name(Path(run.out)), sha256_of(Path(run.out) / MANIFEST_NAME)) for run in plan.runs],
        "parameters": [plan.ep, plan.batch_tokens, plan.order, plan.per_layer],
        "versions": versions(_FITTING),
        "code": code_hash(_FITTING_ROOMS),
    }
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
