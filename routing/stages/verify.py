"""`routing verify RUN...`: every figure of a finished run a second time, without SQL; damage first, then what doesn't agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import CheckFailedError, DamagedDataError
from routing.core.placement import CONTIGUOUS, Placement, default_ep_sizes, valid_ep_sizes
from routing.query.imbalance import imbalance_rows
from routing.stages.imbalance import open_distinct
from routing.store.part_check import next_step
from routing.store.run import Run, require_finished
from routing.verify.batches import batch_ranks, cut, imbalance_finding, nested_finding
from routing.verify.files import Integers, RunFiles, file_findings, read_run_files
from routing.verify.finding import Finding
from routing.verify.loads import Recount, expert_owners, recount
from routing.verify.tree import Tree, tree_findings


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
    failure: CheckFailedError | None = None
    for run in runs:
        require_finished(run)
    for run in runs:
        found, told = _verified(run, batch_sizes)
        warnings += [*run.notices, *told]
        rows += [{"run": run.name, **_row(one)} for one in found]
        failure = failure or first_failure(run, found)
    return VerifyAnswer(rows=rows, failure=failure, warnings=tuple(dict.fromkeys(warnings)))


def owners_of(files: RunFiles, eps: Sequence[int], placement: Placement) -> dict[int, Integers]:
    """The rank of every expert, [L, E], by EP size; worked out by the second way, of a file its ranks are handed in."""
    file_ranks = {} if placement.file is None else {one.layer: one.ranks for one in placement.file.layers}
    return expert_owners(files, eps, placement.kind, file_ranks=file_ranks)


def recounted(run: Run, eps: Sequence[int], placement: Placement) -> tuple[Tree | None, Recount | None, list[Finding]]:
    """(tree, loads, what the checks of both came to); None where ids are so wrong that there is nothing to go on with.

    DamagedDataError where a file is not the one that was written.
    """
    files = read_run_files(run.folder)
    tree, of_tree = tree_findings(files)
    found = [*file_findings(files), *of_tree]
    _require_undamaged(run, found)
    if tree is None:
        return None, None, found
    counted = recount(files, tree, owners_of(files, eps, placement))
    found += counted.findings
    _require_undamaged(run, found)
    return tree, counted, found


def first_failure(run: Run, found: Sequence[Finding]) -> CheckFailedError | None:
    """The first check that failed, as an error to raise or to keep."""
    first = next((one for one in found if one.num_failed), None)
    return None if first is None else CheckFailedError(f"{run.folder}: {_told(first)}; measure this run again")


def _verified(run: Run, batch_sizes: Sequence[int]) -> tuple[list[Finding], list[str]]:
    num_experts = run.manifest.shape.num_experts
    eps = default_ep_sizes(num_experts)[0] or valid_ep_sizes(num_experts)
    warnings: list[str] = []
    tree, counted, found = recounted(run, eps, CONTIGUOUS)
    if counted is not None and counted.repeats:
        warnings.append(f"repeated_loads: {run.name}: {counted.repeats} segments are there twice, the exact repeats are dropped")
    if tree is None or counted is None or first_failure(run, found) is not None:
        return found, warnings  # the program answers nothing about a run whose checks fail
    layers = run.manifest.shape.moe_layers
    # Asked anew: an answer kept in the run's cache was confirmed before, or is what is in doubt.
    answers, _ = imbalance_rows(run, eps=eps, batch_sizes=batch_sizes, by_layer=True)
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
            raise DamagedDataError(f"{run.folder}: {_told(one)}; see what is to be done: {next_step(run.folder)} --dry-run")


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
