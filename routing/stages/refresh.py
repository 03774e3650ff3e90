"""`routing refresh`: what a plan's runs still lack measured, fitted, and the result held against the committed table."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.audit.difference import Moved, difference, difference_rows, same_entries
from routing.audit.pull_request import MARK, RefreshFacts, RunLine, markdown
from routing.core.allowance import AllowanceTable
from routing.core.errors import InputError
from routing.core.placement import PLACEMENT, require_ep_size
from routing.core.refresh_plan import PlannedRun, RefreshPlan
from routing.core.shapes import ModelShape
from routing.measure.policy import policy_shape
from routing.stages.begin import Progress, existing
from routing.stages.candidate import Candidate, candidate, candidate_path
from routing.stages.check import CheckAnswer, check, require_same_model
from routing.stages.measured import measured
from routing.store.allowances import read_table, rewrite_table
from routing.store.files import require_replaceable, write_bytes
from routing.store.plans import read_plan
from routing.store.run import read_manifest, run_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshAnswer:
    """`answer` as `routing refresh --json` gives it, `markdown` for a pull request; `warnings` one line each.

    `failure` says what the runs exceed of the committed table, `nothing_said` that not one of its entries could be compared.
    """

    answer: dict[str, Any]
    markdown: str
    warnings: tuple[str, ...]
    failure: str | None
    nothing_said: str | None


def refresh(
    plan_path: Path, progress: Progress, *, write: bool, markdown_path: Path | None, command: tuple[str, ...]
) -> RefreshAnswer:
    """Measures and fits what isn't up to date, and replaces the committed table only where `write` says so.

    InputError, before a forward pass, for a plan that can't be followed or whose runs are of another model than the table.
    """
    plan = read_plan(plan_path)
    table_path, fitted_path = Path(plan.table), candidate_path(plan_path, plan)
    if os.path.realpath(table_path) == os.path.realpath(fitted_path):
        raise InputError(f"{plan_path}: table: {table_path} is where the fit of this plan goes; name another")
    if markdown_path is not None:
        require_replaceable(markdown_path, what="a refresh's Markdown", marks=(MARK.encode(),))
    committed = read_table(table_path) if os.path.lexists(table_path) else None
    if committed is not None and committed.placement != PLACEMENT:
        raise InputError(f"{table_path}: of placement {committed.placement}, a refresh fits {PLACEMENT}; fit it by routing fit")
    _require_one_model(plan_path, plan, committed)
    steps = [measured(run, progress, command) for run in plan.runs]
    found = candidate(fitted_path, plan)
    progress.note(f"{fitted_path}: {'fitted' if found.is_new else 'fitted already from these runs; nothing to fit'}")
    folders = [Path(run.out) for run in plan.runs]
    checked = None if committed is None else check(table_path, folders, next_step=_next_step(write))
    moved = difference(committed, found.table)
    is_written = write and not same_entries(committed, found.table)
    if is_written:
        rewrite_table(table_path, found.table)
    lines = [_run_line(run) for run in plan.runs]
    facts = RefreshFacts(
        fitted=found.table,
        moved=moved,
        comparisons=None if checked is None else checked.comparisons,
        runs=tuple(lines),
        table=str(table_path),
        command=shlex.join(("routing", "refresh", str(plan_path))),
        is_written=is_written,
    )
    text = markdown(facts)
    if markdown_path is not None:
        write_bytes(markdown_path, text.encode(errors="backslashreplace"))
    steps.append({"step": "fit", "of": str(fitted_path), "did": "fitted" if found.is_new else "up to date"})
    return RefreshAnswer(
        answer=_answer(plan_path, plan, found, checked, moved, steps=steps, is_written=is_written),
        markdown=text,
        warnings=tuple(dict.fromkeys([*_cautions(plan, committed, is_written), *found.warnings, *_said(checked)])),
        failure=None if checked is None else checked.failure,
        nothing_said=None if checked is None else checked.nothing_said,
    )


def _require_one_model(plan_path: Path, plan: RefreshPlan, committed: AllowanceTable | None) -> None:
    """From manifests and configurations alone: a wrong plan is told before hours of forward passes."""
    first: ModelShape | None = None
    for run in plan.runs:
        out = Path(run.out)
        manifest = existing(out)
        shape = policy_shape(run.policy) if manifest is None else manifest.shape
        if committed is not None:
            require_same_model(committed, shape, Path(plan.table), where=run.out)
        for name in ModelShape.__slots__:
            if first is not None and getattr(first, name) != getattr(shape, name):
                values = f"{getattr(first, name)} against {getattr(shape, name)}"
                raise InputError(f"{plan.runs[0].out} and {run.out}: two models, {name} {values}; a plan is of one"[:300])
        first = first or shape
        for ep in plan.ep or ():
            require_ep_size(ep, shape.num_experts, name=f"{plan_path}: ep")


def _next_step(write: bool) -> str:
    return "the fitted table replaces it" if write else "nothing was changed, --write replaces it by the fitted table"


def _cautions(plan: RefreshPlan, committed: AllowanceTable | None, is_written: bool) -> list[str]:
    found = []
    for run in plan.runs:
        label = read_manifest(Path(run.out)).label
        if label != run.label:
            found.append(f"other_label: {run.out}: was measured as {label!r}, the plan says {run.label!r}; the run keeps its own")
    if is_written and committed is not None and committed.override is not None:
        found.append(f"override_dropped: {plan.table}: was edited by hand and answered for; the fitted table needs no override")
    return found


def _said(checked: CheckAnswer | None) -> Sequence[str]:
    return () if checked is None else checked.warnings


def _run_line(run: PlannedRun) -> RunLine:
    manifest = read_manifest(Path(run.out))
    return RunLine(
        run=run_name(Path(run.out)),
        label=manifest.label,
        tokens_packed=manifest.corpus.tokens_packed,
        num_trajectories=manifest.corpus.num_trajectories,
        content_hash=manifest.content_hash or "",
        corpus_hash=manifest.corpus.corpus_hash,
    )


def _answer(
    plan_path: Path,
    plan: RefreshPlan,
    found: Candidate,
    checked: CheckAnswer | None,
    moved: tuple[Moved, ...],
    *,
    steps: list[dict[str, Any]],
    is_written: bool,
) -> dict[str, Any]:
    return {
        "plan": str(plan_path),
        "table": plan.table,
        "fitted": str(found.path),
        "model": found.table.model.name,
        "content_hash": found.table.content_hash,
        "steps": steps,
        "check": None if checked is None else checked.answer,
        "difference": difference_rows(moved),
        "is_written": is_written,
    }
