"""`routing measure` by one process: a policy and a corpus in, a run directory out; goes on where an earlier call stopped."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import torch

from routing.core.segments import PrefixTree
from routing.corpus.tree import tree_tables
from routing.measure.budget import Budget
from routing.measure.capture import ExpertCounter
from routing.measure.forward import measure_part
from routing.measure.plan import PartPlan, TokenIds
from routing.measure.policy import LoadedPolicy, load_policy
from routing.measure.prefixes import HeldCaches
from routing.measure.router_faults import RouterError
from routing.stages.begin import SEED, MeasureRequest, Prepared, Progress, base_of, existing, prepare, require_same
from routing.stages.corpus_record import RunSizes, counts
from routing.stages.provenance import utc_now
from routing.stages.settle import Settled, ask, settle
from routing.stages.skipping import without_bad, without_recorded
from routing.stages.walk import tokens_to_compute
from routing.store.content import content_hash
from routing.store.loads import loads_table
from routing.store.manifest import Manifest
from routing.store.run import Run, RunWriter, open_run, writing
from routing.store.schemas import SCHEMAS
from routing.store.worker_parts import remove_records


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureResult(RunSizes):
    """What was measured; `elapsed_s` sums the forward passes over all calls that built the run."""

    elapsed_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPart:
    """One part's rows of `loads`, and what they took."""

    index: int
    rows: pa.Table
    rows_per_segment: int
    elapsed_s: float
    halvings: int


Commit = Callable[[MeasuredPart], None]


def measure(request: MeasureRequest, progress: Progress) -> MeasureResult:
    """Measures what the run still lacks, that of the base policy first where one is asked for.

    A finished run is said to be finished and left as it is.
    """
    prepared = prepare(request, progress)
    if request.base_out is not None:
        _measure(request.base_out, base_of(prepared), progress)
    if request.skip_bad:
        return _measure_but_bad(request.out, prepared, progress)
    return _measure(request.out, prepared, progress)


def _measure_but_bad(out: Path, prepared: Prepared, progress: Progress) -> MeasureResult:
    prepared = without_recorded(out, prepared)
    while True:
        try:
            return _measure(out, prepared, progress)
        except RouterError as error:
            prepared = without_bad(out, prepared, error, progress.note)


def _measure(out: Path, prepared: Prepared, progress: Progress) -> MeasureResult:
    load = partial(load_policy, prepared.files, device=prepared.device, dtype=prepared.dtype, device_map=prepared.device_map)
    return measure_prepared(out, prepared, progress, load=load)


def measure_prepared(out: Path, prepared: Prepared, progress: Progress, *, load: Callable[[], LoadedPolicy]) -> MeasureResult:
    """The same for what is prepared; `load` is called once all that could refuse the run has been asked."""
    with writing(out) as notices:
        for notice in notices:
            progress.note(notice)
        found = existing(out)
        if found is not None:
            require_same(out, found, prepared.manifest)
        finished = found is not None and found.state == "finished"
        # Weights that can't be loaded leave no run behind, which would hold the corpus to their hash.
        policy = None if finished else load()
        writer = _writer(out, found, prepared, progress)
        if policy is not None:
            settled = settle(prepared, policy, ask(prepared, policy, found), writer, progress)
            missing = [part for part in prepared.parts if not writer.has("loads", part.index)]
            measure_parts(prepared, policy, settled, missing, _committing(writer), progress, share=missing)
            finish(writer, progress)
        return MeasureResult(**counts(out, writer.manifest), elapsed_s=round(writer.manifest.elapsed_s, 3))


def _writer(out: Path, found: Manifest | None, prepared: Prepared, progress: Progress) -> RunWriter:
    if found is None:
        return begin_run(out, None, prepared)
    run = open_run(out)
    for notice in run.notices:
        progress.note(notice)
    if found.state == "finished":
        progress.note(f"{out}: finished already on {found.finished_at}; nothing to measure")
    else:
        progress.note(f"{out}: going on, {len(run.part_paths('loads'))} of {found.planned_load_parts} parts are in")
        note_versions(out, found, prepared, progress)
    writer = begin_run(out, run.manifest, prepared)
    if run.manifest != found:
        writer.update()
        remove_records(out, writer.manifest)
    return writer


def begin_run(out: Path, found: Manifest | None, prepared: Prepared) -> RunWriter:
    """The run's manifest and what all parts share, written where they aren't there yet."""
    writer = RunWriter(out, prepared.manifest if found is None else found)
    if found is None:
        writer.update()  # first of all: whatever a kill leaves behind then belongs to a run
    if not all(writer.has(table, 0) for table in SCHEMAS if table != "loads"):
        for table, rows in tree_tables(prepared.tree, prepared.corpus.trajectories).items():
            if not writer.has(table, 0):
                writer.commit(table, 0, rows)
    return writer


def finish(writer: RunWriter, progress: Progress) -> None:
    """Seals a run whose parts are all in the writer's manifest; tells where a repaired run came out other than it was."""
    before, now = writer.manifest.content_hash, content_hash(Run(folder=writer.folder, manifest=writer.manifest))
    if before not in (None, now):
        told = f"the parts measured again hold other rows than the damaged ones did (content hash {before[:12]}, now {now[:12]})"
        progress.note(f"{writer.folder}: {told}; fit again what rests on this run")
    writer.update(content_hash=now, state="finished", finished_at=utc_now())


def note_versions(out: Path, found: Manifest, prepared: Prepared, progress: Progress) -> None:
    """Tells where an unfinished run was begun with other versions."""
    old, new = found.versions, prepared.manifest.versions
    if old != new:
        names = (name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
        changed = ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in names)
        progress.note(f"{out}: begun with other versions ({changed}); near-ties may fall otherwise")


def measure_parts(
    prepared: Prepared,
    policy: LoadedPolicy,
    settled: Settled,
    parts: Iterable[PartPlan],
    commit: Commit,
    progress: Progress,
    *,
    share: Sequence[PartPlan],
) -> None:
    """Runs the policy over the parts, `share` or about as many, and hands each one's loads to `commit` before the next."""
    torch.manual_seed(SEED)
    held = settled.held
    num_tokens = tokens_to_compute(share, prepared.tree, held.anchors if held else None)
    progress.begin(f"measuring {prepared.manifest.label}", num_tokens)
    sequences = [one.token_ids for one in prepared.corpus.trajectories]
    budget = Budget(tokens_per_batch=settled.tokens_per_batch)
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        for part in parts:
            _measure_one(policy, counter, part, prepared.tree, sequences, budget, held, commit, progress.advance)


def _measure_one(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    part: PartPlan,
    tree: PrefixTree,
    sequences: Sequence[TokenIds],
    budget: Budget,
    held: HeldCaches | None,
    commit: Commit,
    on_tokens: Callable[[int], None],
) -> None:
    began, halvings = time.monotonic(), budget.halvings
    loads_SLE = measure_part(policy, counter, part, tree, sequences, budget, held=held, on_tokens=on_tokens)
    layers = [experts.layer for experts in policy.experts]
    commit(
        MeasuredPart(
            index=part.index,
            rows=loads_table(loads_SLE.numpy(), first_segment=part.first_segment, layers=layers),
            rows_per_segment=len(layers) * counter.num_experts,
            elapsed_s=time.monotonic() - began,
            halvings=budget.halvings - halvings,
        )
    )


def _committing(writer: RunWriter) -> Commit:
    def commit(part: MeasuredPart) -> None:
        writer.commit(
            "loads",
            part.index,
            part.rows,
            rows_per_segment=part.rows_per_segment,
            elapsed_s=writer.manifest.elapsed_s + part.elapsed_s,
            halvings=writer.manifest.halvings + part.halvings,
        )

    return commit
