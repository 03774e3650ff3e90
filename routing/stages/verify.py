"""`routing verify RUN...`: every figure of a finished run a second time, without SQL; damage first, then what doesn't agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.errors import CheckFailedError, DamagedDataError
from routing.core.placement import CONTIGUOUS, Placement, default_ep_sizes, valid_ep_sizes
from routing.stages.imbalance import open_distinct
from routing.stages.kept import kept_imbalance_rows
from routing.store.run import Run, require_finished
from routing.verify.batches import batch_ranks, cut, imbalance_finding, nested_finding
from routing.verify.files import RunFiles, file_findings, read_run_files
from routing.verify.finding import Finding
from routing.verify.loads import recount
from routing.verify.tree import tree_findings


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyAnswer:
    """`rows` as `routing verify --json` gives them, `failure` for the first that failed, `warnings` one line each."""

    rows: list[dict[str, Any]]
    failure: CheckFailedError | None
    warnings: tuple[str, ...]


def verify(folders: Sequence[Path], *, batch_sizes: Sequence[int]) -> VerifyAnswer:
    """Recounts every run at EP 2, 4 and 8, as far as they divide its experts, else at every size that does.

    DamagedDataError before anything is told.
    """
    runs = open_distinct(folders)
    rows, warnings = [], []
    failure = None
    for run in runs:
        require_finished(run)
    for run in runs:
        found, told = _verified(run, batch_sizes)
        warnings += [*run.notices, *told]
        rows += [{"run": run.name, **_row(one)} for one in found]
        first = next((one for one in found if one.num_failed), None)
        if first is not None and failure is None:
            failure = CheckFailedError(f"{run.folder}: {_told(first)}; measure this run again")
    return VerifyAnswer(rows=rows, failure=failure, warnings=tuple(dict.fromkeys(warnings)))


def owners_of(files: RunFiles, eps: Sequence[int], placement: Placement) -> dict[int, npt.NDArray[np.int64]]:
    """The rank of every expert, [L, E], by EP size."""
    layers, num_experts = files.body["shape"]["moe_layers"], files.body["shape"]["num_experts"]
    return {
        ep: np.array([placement.ranks(layer, ep=ep, num_experts=num_experts) for layer in layers], dtype=np.int64)
        for ep in eps
    }


def _verified(run: Run, batch_sizes: Sequence[int]) -> tuple[list[Finding], list[str]]:
    num_experts = run.manifest.shape.num_experts
    eps = default_ep_sizes(num_experts)[0] or valid_ep_sizes(num_experts)
    warnings: list[str] = []
    files = read_run_files(run.folder)
    found = file_findings(files)
    tree, more = tree_findings(files)
    found += more
    _require_undamaged(run, found)
    if tree is None:
        return found, warnings
    counted = recount(files, tree, owners_of(files, eps, CONTIGUOUS))
    found += counted.findings
    _require_undamaged(run, found)
    if counted.repeats:
        warnings.append(f"repeated_loads: {run.name}: {counted.repeats} segments are there twice, the exact repeats are dropped")
    if any(one.num_failed for one in found):
        return found, warnings  # the program answers nothing about a run whose checks fail
    layers = run.manifest.shape.moe_layers
    answers, _ = kept_imbalance_rows(run, eps=eps, batch_sizes=batch_sizes, by_layer=True)
    for size in batch_sizes:
        batches = cut(tree, batch_tokens=size)
        by_ep = {ep: batch_ranks(batches, counted.ranks[ep]) for ep in eps}
        mine = [answer for answer in answers if answer["batch_tokens"] == size]
        found += [
            nested_finding(by_ep, layers, batch_tokens=size),
            imbalance_finding(mine, by_ep, layers, batch_tokens=size),
        ]
    return found, warnings


def _require_undamaged(run: Run, found: Sequence[Finding]) -> None:
    for one in found:
        if one.is_damage and one.num_failed:
            raise DamagedDataError(f"{run.folder}: {_told(one)}; see what is to be done: routing repair {run.folder} --dry-run")


def _told(one: Finding) -> str:
    places = f"in {one.num_failed} places, the first" if one.num_failed > 1 else "in one place"
    return f"{one.check} fails {places}: {one.first}"


def _row(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "num_checked": one.num_checked,
        "of": one.of,
        "num_failed": one.num_failed,
        "first_failure": one.first,
    }
