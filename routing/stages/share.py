"""`routing measure` by one of several workers: its share of the parts, with no word exchanged but through the run directory.

Each worker reads the corpus and cuts the same tree, takes the parts that the deal gives it and commits them with a record
each. Whoever finds all parts in seals the run. A dead worker leaves its share unfinished, which any later call goes on with.
"""

from dataclasses import dataclass
from pathlib import Path

from routing.core.worker import Worker
from routing.measure.plan import PartPlan, deal_parts
from routing.measure.policy import load_policy
from routing.stages.begin import MeasureRequest, Prepared, Progress, base_of, existing, prepare, require_same
from routing.stages.corpus_record import RunSizes, counts
from routing.stages.measure import MeasuredPart, begin_run, finish, measure_parts, note_versions, settle_implementations
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
        share = deal_parts(prepared.parts, worker=worker.index, num_workers=worker.count)
        missing = [part for part in share if not _is_in(out, found or prepared.manifest, part)]
        progress.note(f"{out}: {worker.name}, {len(missing)} of its {len(share)} parts to measure")
        if missing:
            _measure_share(out, prepared, missing, progress)
        manifest = _seal(out, prepared, progress)
    done = sum(part.table == "loads" for part in manifest.parts)
    return ShareResult(
        **counts(out, manifest),
        worker=worker.name,
        parts_measured=len(missing),
        parts_done=done,
        parts=manifest.planned_load_parts,
        state=manifest.state,
        elapsed_s=round(manifest.elapsed_s, 3),
    )


def _is_in(out: Path, manifest: Manifest, part: PartPlan) -> bool:
    return is_recorded(out, manifest, part_name("loads", part.index))


def _measure_share(out: Path, prepared: Prepared, missing: list[PartPlan], progress: Progress) -> None:
    policy = load_policy(
        prepared.files, device=prepared.device, dtype=prepared.dtype, device_map=prepared.device_map
    )
    with manifest_turn(out):
        found = existing(out)
        if found is not None:
            require_same(out, found, prepared.manifest)
            note_versions(out, found, prepared, progress)
        writer = begin_run(out, found, prepared)
        settle_implementations(policy, writer)
    removed = clear_unfinished(out, {part_name("loads", part.index) for part in missing})
    if removed:
        progress.note(f"{out}: {removed} unfinished files of an earlier worker removed")

    def commit(part: MeasuredPart) -> None:
        notice = commit_part(
            out,
            read_manifest(out),  # as it is now: another call may have sealed the run meanwhile
            part_name("loads", part.index),
            part.rows,
            rows_per_segment=part.rows_per_segment,
            elapsed_s=part.elapsed_s,
            halvings=part.halvings,
        )
        if notice is not None:
            progress.note(notice)

    measure_parts(prepared, policy, missing, commit, progress)


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
        finish(writer)
        remove_records(out, writer.manifest)
        return writer.manifest
