"""The measurements of a refresh: a finished run whose policy, files and settings are as they were is not even read for again."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from routing.core.refresh_plan import PlannedRun
from routing.corpus.hashing import hash_path
from routing.measure.device import resolve_device
from routing.measure.policy import resolve_policy
from routing.stages.begin import MeasureRequest, Progress, existing
from routing.stages.measure import measure
from routing.stages.provenance import code_hash, versions
from routing.store.manifest import Manifest, PolicyRecord
from routing.store.marks import Mark, read_mark, write_mark
from routing.store.run import open_run, read_manifest

_MEASURING_ROOMS = ("core", "corpus", "measure", "stages", "store")


def measured(run: PlannedRun, progress: Progress, command: tuple[str, ...]) -> dict[str, Any]:
    """Measures what the planned run still lacks; returns the step that was done, as `routing refresh --json` gives it."""
    out = Path(run.out)
    before = existing(out)
    step = {"step": "measure", "of": run.out}
    if before is not None and before.state == "finished" and _is_up_to_date(run, before):
        for notice in open_run(out).notices:  # a damaged part is named before any number
            progress.note(notice)
        progress.note(f"{out}: finished already on {before.finished_at}, and nothing it was made from has changed")
        return {**step, "did": "up to date"}
    measure(_request(run, command), progress)
    manifest = read_manifest(out)
    files = [file.sha256 for file in manifest.corpus.files]
    write_mark(out, Mark(made_from=_made_from(run, manifest.policy, files), content_hash=manifest.content_hash or ""))
    return {**step, "did": "measured" if before is None else "up to date" if before.state == "finished" else "went on"}


def _is_up_to_date(run: PlannedRun, manifest: Manifest) -> bool:
    mark = read_mark(Path(run.out))
    if mark is None or mark.content_hash != manifest.content_hash:
        return False
    files = [hash_path(Path(file), name=file)[0] for file in run.corpus]
    return mark.made_from == _made_from(run, resolve_policy(run.policy, tokenizer=run.tokenizer).record, files)


def _made_from(run: PlannedRun, policy: PolicyRecord, files: list[str]) -> str:
    """sha256 over what decides a run's counts and what its manifest says of them."""
    body = {
        "run": {name: value for name, value in asdict(run).items() if name not in ("out", "label")},
        "policy": [policy.revision, policy.weights_sha256, policy.config_sha256, policy.tokenizer_sha256],
        "files": files,
        "device": resolve_device(run.device).type,
        "versions": versions(),
        "code": code_hash(_MEASURING_ROOMS),
    }
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _request(run: PlannedRun, command: tuple[str, ...]) -> MeasureRequest:
    return MeasureRequest(
        policy=run.policy,
        corpus=tuple(map(Path, run.corpus)),
        out=Path(run.out),
        label=run.label,
        tokenizer=run.tokenizer,
        format=run.format,
        domain=run.domain,
        segment_tokens=run.segment_tokens,
        max_tokens=run.max_tokens,
        device=run.device,
        dtype=run.dtype,
        on_bad_line="stop",
        command=command,
    )
