"""`routing show`: what a run holds, whether its checks hold, where it stopped."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import RoutingError
from routing.query.checks import CheckResult, require_no_violation, run_checks
from routing.store.content import require_content
from routing.store.manifest import FileRecord
from routing.store.run import Run, open_run


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowAnswer:
    """`facts` of one run, its first failed check as the error it is, and `warnings` one line each."""

    facts: dict[str, Any]
    failure: RoutingError | None
    warnings: tuple[str, ...]


def show(folder: Path) -> ShowAnswer:
    """Verifies every part, runs every check, and tells what the manifest says; failed checks are told, not raised."""
    run = open_run(folder)
    manifest, checks = run.manifest, run_checks(run)
    reasons = Counter(refusal.reason for refusal in manifest.corpus.refusals)
    facts = {
        "run": run.name,
        "label": manifest.label,
        "state": manifest.state,
        "origin": manifest.origin,
        "parts": f"{len(run.part_paths('loads'))} of {manifest.planned_load_parts}",
        "policy": asdict(manifest.policy),
        "shape": asdict(manifest.shape),
        "recording": asdict(manifest.recording) if manifest.recording else None,
        "corpus": {
            "files": [_told(file) for file in manifest.corpus.files],
            "trajectories": manifest.corpus.num_trajectories,
            "refused": dict(sorted(reasons.items())),
            "tokens_logical": manifest.corpus.tokens_logical,
            "tokens_packed": manifest.corpus.tokens_packed,
            "segments": manifest.corpus.num_segments,
            "normalised": manifest.corpus.normalised,
        },
        "settings": asdict(manifest.settings),
        "versions": manifest.versions,
        "tool": {"commit": manifest.tool_commit, "dirty": manifest.tool_dirty},
        "times": {"started": manifest.started_at, "finished": manifest.finished_at, "elapsed_s": round(manifest.elapsed_s, 3)},
        "halvings": manifest.halvings,
        "content_hash": manifest.content_hash,
        "checks": {one.name: "fails" if one.num_violations else "holds" for one in checks},
    }
    return ShowAnswer(facts=facts, failure=_first_failure(run, checks), warnings=run.notices)


def _told(file: FileRecord) -> str:
    skipped = f", {file.bad_lines} bad lines skipped" if file.bad_lines else ""
    return f"{file.name} ({file.format}: {file.kept} of {file.rows} rows{skipped})"


def _first_failure(run: Run, checks: tuple[CheckResult, ...]) -> RoutingError | None:
    try:
        require_no_violation(run, checks)
        require_content(run)
    except RoutingError as error:
        return error
    return None
