"""`routing measure`: a policy and a corpus in, a run directory out; goes on where an earlier call stopped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.corpus.tree import tree_tables
from routing.measure.capture import ExpertCounter
from routing.measure.forward import Budget, TokenIds, measure_part
from routing.measure.plan import PartPlan
from routing.measure.policy import LoadedPolicy, load_policy
from routing.measure.prefixes import HeldCaches
from routing.stages.begin import SEED, MeasureRequest, Prepared, Progress, existing, prepare, require_same
from routing.stages.corpus_record import counts
from routing.stages.provenance import utc_now
from routing.stages.walk import settle_walk, tokens_to_compute
from routing.store.loads import loads_table
from routing.store.manifest import Manifest
from routing.store.run import Run, RunWriter, content_hash, open_run, writing


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureResult:
    """What was measured; `elapsed_s` sums the forward passes over all calls that built the run."""

    run: str
    tokens_logical: int
    tokens_packed: int
    segments: int
    trajectories: int
    refused: int
    layers: int
    experts: int
    top_k: int
    elapsed_s: float


def measure(request: MeasureRequest, progress: Progress) -> MeasureResult:
    """Measures what the run still lacks; a finished run is said to be finished and left as it is."""
    prepared = prepare(request, progress)
    with writing(request.out) as notices:
        for notice in notices:
            progress.note(notice)
        found = existing(request.out)
        if found is not None:
            require_same(request.out, found, prepared.manifest)
        finished = found is not None and found.state == "finished"
        # Weights that can't be loaded leave no run behind, which would hold the corpus to their hash.
        policy = None if finished else load_policy(prepared.files, device=prepared.device, dtype=prepared.dtype)
        writer = _writer(request.out, found, prepared, progress)
        if policy is not None:
            _measure_missing(prepared, policy, writer, progress)
        return MeasureResult(**counts(request.out, writer.manifest), elapsed_s=round(writer.manifest.elapsed_s, 3))


def _writer(out: Path, found: Manifest | None, prepared: Prepared, progress: Progress) -> RunWriter:
    if found is None:
        writer = RunWriter(out, prepared.manifest)
        writer.update()  # first of all: whatever a kill leaves behind then belongs to a run
        for table, rows in tree_tables(prepared.tree, prepared.corpus.trajectories).items():
            writer.commit(table, 0, rows)
        return writer
    run = open_run(out)
    for notice in run.notices:
        progress.note(notice)
    if found.state == "finished":
        progress.note(f"{out}: finished already on {found.finished_at}; nothing to measure")
    else:
        progress.note(f"{out}: going on, {len(run.part_paths('loads'))} of {found.planned_load_parts} parts are in")
    if found.versions != prepared.manifest.versions and found.state != "finished":
        changed = _difference(found.versions, prepared.manifest.versions)
        progress.note(f"{out}: begun with other versions ({changed}); near-ties may fall otherwise")
    writer = RunWriter(out, found)
    for table, rows in tree_tables(prepared.tree, prepared.corpus.trajectories).items():
        if not writer.has(table, 0):
            writer.commit(table, 0, rows)
    return writer


def _difference(old: dict[str, str], new: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {old.get(name)} -> {new.get(name)}" for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)
    )


def _measure_missing(prepared: Prepared, policy: LoadedPolicy, writer: RunWriter, progress: Progress) -> None:
    torch.manual_seed(SEED)
    _settle_implementations(policy, writer)
    missing = [part for part in prepared.parts if not writer.has("loads", part.index)]
    sequences = [one.token_ids for one in prepared.corpus.trajectories]
    budget = Budget(tokens_per_batch=writer.manifest.settings.tokens_per_batch)
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        held = settle_walk(prepared, policy, counter, writer, progress)
        num_tokens = tokens_to_compute(missing, prepared.tree, held.anchors if held else None)
        progress.begin(f"measuring {writer.manifest.label}", num_tokens)
        for part in missing:
            _measure_one(policy, counter, part, prepared.tree, sequences, budget, held, writer, progress.advance)
    finished = Run(folder=writer.folder, manifest=writer.manifest)
    writer.update(content_hash=content_hash(finished), state="finished", finished_at=utc_now())


def _settle_implementations(policy: LoadedPolicy, writer: RunWriter) -> None:
    """Records what the model chose, known only now; a run that began with another is not gone on with."""
    chosen = {name: getattr(policy, name) for name in ("attention_implementation", "experts_implementation")}
    for name, now in chosen.items():
        before = getattr(writer.manifest.settings, name)
        if before not in (None, now):
            raise InputError(f"{writer.folder}: was measured with {name} {before}, now {now}; choose another --out")
    writer.update(settings=replace(writer.manifest.settings, **chosen))


def _measure_one(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    part: PartPlan,
    tree: PrefixTree,
    sequences: Sequence[TokenIds],
    budget: Budget,
    held: HeldCaches | None,
    writer: RunWriter,
    on_tokens: Callable[[int], None],
) -> None:
    began, halvings = time.monotonic(), budget.halvings
    loads_SLE = measure_part(policy, counter, part, tree, sequences, budget, held=held, on_tokens=on_tokens)
    layers = [experts.layer for experts in policy.experts]
    rows = loads_table(loads_SLE.numpy(), first_segment=part.first_segment, layers=layers)
    writer.commit(
        "loads",
        part.index,
        rows,
        rows_per_segment=len(layers) * counter.num_experts,
        elapsed_s=writer.manifest.elapsed_s + time.monotonic() - began,
        halvings=writer.manifest.halvings + budget.halvings - halvings,
    )
