"""`routing measure` by one of several workers: its share of the parts, with no word exchanged but through the run directory.

Each worker reads the corpus and cuts the same tree, takes the parts that the deal of what is missing gives it, then those that
nobody else is at, and commits each with a record. A part is held, by a lock that ends with its worker, while it is measured.
Whoever finds all parts in seals the run. What a dead worker held is taken by those still at work, or by any later call.
"""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from routing.core.worker import Worker
from routing.measure.plan import PartPlan, deal_parts
from routing.measure.policy import load_policy
from routing.stages.begin import MeasureRequest, Prepared, Progress, base_of, existing, prepare, require_same
from routing.stages.corpus_record import RunSizes, counts
from routing.stages.measure import MeasuredPart, begin_run, finish, measure_parts, note_versions
from routing.stages.settle import ask, settle
from routing.store.lock import part_claims
from routing.store.manifest import Manifest
from routing.store.run import RunWriter, manifest_turn, open_run, part_name, read_manifest, working
from routing.store.worker_parts import clear_unfinished, commit_part, gather, is_recorded, remove_records


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareResult(RunSizes):
    """What one worker did, and where the whole run stands; `elapsed_s` sums the forward passes of all workers."""

    worker: str
    parts_measured: int
    parts_done: int
    parts: int
    state: str
    elapsed_s: float


def measure_share(request: MeasureRequest, progress: Progress) -> ShareResult:
    """Measures what this worker's share still lacks, and seals a run where nobody's lacks anything; the base policy's first."""
    prepared = prepare(request, progress)
    if request.base_out is not None:
        _measure_one(request.base_out, base_of(prepared), request.worker, progress)
    return _measure_one(request.out, prepared, request.worker, progress)


def _measure_one(out: Path, prepared: Prepared, worker: Worker, progress: Progress) -> ShareResult:
    with working(out) as notices:
        for notice in notices:
            progress.note(notice)
        found = existing(out)
        if found is not None:
            require_same(out, found, prepared.manifest)
        missing = [part for part in prepared.parts if not _is_in(out, found or prepared.manifest, part)]
        share = deal_parts(missing, worker=worker.index, num_workers=worker.count) if missing else ()
        progress.note(f"{out}: {worker.name}, {len(share)} of {len(missing)} missing parts are its share")
        measured = _measure_share(out, prepared, share, missing, progress) if share else 0
        manifest = _seal(out, prepared, progress)
    done = sum(part.table == "loads" for part in manifest.parts)
    return ShareResult(
        **counts(out, manifest),
        worker=worker.name,
        parts_measured=measured,
        parts_done=done,
        parts=manifest.planned_load_parts,
        state=manifest.state,
        elapsed_s=round(manifest.elapsed_s, 3),
    )


def _is_in(out: Path, manifest: Manifest, part: PartPlan) -> bool:
    return is_recorded(out, manifest, part_name("loads", part.index))


def _measure_share(
    out: Path, prepared: Prepared, share: Sequence[PartPlan], missing: Sequence[PartPlan], progress: Progress
) -> int:
    """Measures the share, then what is free of the rest, from its end, which its owners come to last; returns how many parts."""
    policy = load_policy(prepared.files, device=prepared.device, dtype=prepared.dtype, device_map=prepared.device_map)
    found = ask(prepared, policy, existing(out))  # outside the turn, which others wait for
    with manifest_turn(out):
        begun = existing(out)
        if begun is not None:
            require_same(out, begun, prepared.manifest)
            if begun.state == "finished":  # by the others, while this worker loaded its weights
                return 0
            note_versions(out, begun, prepared, progress)
        writer = begin_run(out, begun, prepared)
        settled = settle(prepared, policy, found, writer, progress)
    num_measured = 0

    def commit(part: MeasuredPart) -> None:
        nonlocal num_measured
        notice = commit_part(
            out,
            read_manifest(out),  # as it is now: another call may have sealed the run meanwhile
            part_name("loads", part.index),
            part.rows,
            rows_per_segment=part.rows_per_segment,
            elapsed_s=part.elapsed_s,
            halvings=part.halvings,
        )
        num_measured += 1
        if notice is not None:
            progress.note(notice)

    own = {part.index for part in share}
    rest = [part for part in reversed(missing) if part.index not in own]
    with contextlib.closing(_free(out, [*share, *rest], progress)) as free:
        measure_parts(prepared, policy, settled, free, commit, progress, share=share)
    return num_measured


def _free(out: Path, parts: Sequence[PartPlan], progress: Progress) -> Generator[PartPlan]:
    """Those of `parts` that nobody has measured or is measuring, each held until the next one is asked for."""
    with part_claims(out) as claim:
        for part in parts:
            with claim(part.index) as is_ours:
                if not is_ours or _is_in(out, read_manifest(out), part):
                    continue
                removed = clear_unfinished(out, part_name("loads", part.index))
                if removed:
                    progress.note(f"{out}: {removed} unfinished files of an earlier worker removed")
                yield part


def _seal(out: Path, prepared: Prepared, progress: Progress) -> Manifest:
    """The run's manifest, finished where every part is in; the one that a run would have where nobody has begun it."""
    with manifest_turn(out):
        manifest = existing(out)
        if manifest is None or manifest.state == "finished":
            return manifest or prepared.manifest
        gathered = gather(out, manifest).manifest
        num_done = sum(part.table == "loads" for part in gathered.parts)
        if num_done < manifest.planned_load_parts:
            progress.note(f"{out}: {num_done} of {manifest.planned_load_parts} parts are in; the rest is for other workers")
            return gathered
        writer = RunWriter(out, open_run(out).manifest)  # every part verified
        finish(writer, progress)
        remove_records(out, writer.manifest)
        return writer.manifest
