"""`routing repair RUN`: what of a run is damaged out of its way, and how the run gets whole again."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import DamagedDataError
from routing.store.content import require_content
from routing.store.part_check import next_step
from routing.store.repair import Repair, find_damage, repair_run
from routing.store.run import open_run, run_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairAnswer:
    """`body` as `routing repair --json` gives it; `warnings` one line each."""

    body: dict[str, Any]
    warnings: tuple[str, ...]


def repair(folder: Path, *, dry_run: bool) -> RepairAnswer:
    """Finds what is damaged and, unless `dry_run`, moves it aside and leaves the run to be gone on with.

    DamagedDataError where that would not make the run whole: its manifest is damaged, or every part is as it was written and
    the loads are still not those that were measured.
    """
    repaired = find_damage(folder) if dry_run else repair_run(folder)
    if not repaired.damages and repaired.manifest.state == "finished":
        _require_nothing_else(folder)
    return RepairAnswer(
        body={
            "run": run_name(folder),
            "dry_run": dry_run,
            "damaged": [{"file": one.name, "fault": one.fault, "moved_to": one.moved_to} for one in repaired.damages],
            "state": repaired.manifest.state,
            "next_step": _next_step(folder, repaired, dry_run=dry_run),
        },
        warnings=repaired.notices,
    )


def _require_nothing_else(folder: Path) -> None:
    run = open_run(folder)
    try:
        require_content(run)
    except DamagedDataError as error:
        raise DamagedDataError(f"{error}; no part is damaged, so there is none to move aside") from error


def _next_step(folder: Path, repaired: Repair, *, dry_run: bool) -> str:
    if dry_run and repaired.damages:
        return next_step(folder)
    if repaired.manifest.state == "finished":
        return "nothing: the run is whole"
    verb = "measure" if repaired.manifest.recording is None else "import"
    return f"the same routing {verb} again: {shlex.join(('routing', *repaired.manifest.command))}"
