"""How a measurement begins: policy and corpus read, the prefix tree cut, the manifest drawn up; nothing written yet."""

import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.core.worker import ALONE, Worker
from routing.corpus.files import OpenFile, open_files
from routing.corpus.load import read_corpus
from routing.corpus.sequences import Corpus
from routing.corpus.tree import build_tree
from routing.measure.budget import CPU_TOKENS_PER_BATCH
from routing.measure.device import resolve_device, resolve_dtype, settle_threads
from routing.measure.hub import pin
from routing.measure.plan import TOKENS_PER_PART, PartPlan, plan_parts
from routing.measure.policy import PolicyFiles, adapted, load_tokenizer, resolve_policy
from routing.measure.spread import require_device_map
from routing.stages.corpus_record import corpus_record, require_plain
from routing.stages.provenance import kernels, tool_commit, utc_now, versions
from routing.store.manifest import SCHEMA_VERSION, Manifest, identity
from routing.store.run import MANIFEST_NAME, read_manifest
from routing.store.settings import Settings

SEED = 0


class Progress(Protocol):
    """What a stage tells whoever watches: a line of text, and tokens done of a total."""

    def note(self, text: str) -> None: ...
    def begin(self, what: str, total_tokens: int | None) -> None: ...
    def advance(self, tokens: int) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureRequest:
    """What the user asked for; sizes in tokens."""

    policy: str
    corpus: tuple[Path, ...]
    out: Path
    label: str | None
    tokenizer: str | None
    format: str | None
    domain: str | None
    segment_tokens: int
    max_tokens: int | None
    device: str
    dtype: str
    on_bad_line: str
    command: tuple[str, ...]
    worker: Worker = ALONE
    adapter: Path | None = None
    base_out: Path | None = None
    skip_bad: bool = False
    revision: str | None = None
    device_map: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All that the forward passes need, and the manifest that a new run would begin with."""

    files: PolicyFiles
    corpus: Corpus
    tree: PrefixTree
    parts: tuple[PartPlan, ...]
    manifest: Manifest
    device: torch.device
    dtype: torch.dtype
    device_map: str | None = None


def prepare(request: MeasureRequest, progress: Progress) -> Prepared:
    """Reads policy and corpus; InputError where either can't be measured."""
    _require_two_runs(request)
    _require_one_run_to_skip_in(request)
    has_adapter = request.adapter is not None
    require_device_map(request.device_map, device=request.device, has_adapter=has_adapter, worker=request.worker)
    is_spread = request.device_map is not None  # then a worker takes all that it sees, from the first
    device = resolve_device(request.device, local_rank=0 if is_spread else request.worker.local_rank)
    corpus_files = opened_corpus(request)  # a missing file, before slower things
    files = resolve_policy(_settled_policy(request, progress), tokenizer=request.tokenizer)
    files = files if request.adapter is None else adapted(files, request.adapter)
    dtype = resolve_dtype(request.dtype, device=device, config=files.config)
    settle_threads(files.shape, device, num_workers=request.worker.count)
    require_plain("--label", files.name if request.label is None else request.label)
    return prepare_loaded(request, files, corpus_files, load_tokenizer(files), progress, device=device, dtype=dtype)


def opened_corpus(request: MeasureRequest) -> tuple[OpenFile, ...]:
    """The corpus files, found once and not yet read; InputError, StorageError."""
    return open_files(request.corpus, format=request.format, on_bad_line=request.on_bad_line)


def prepare_loaded(
    request: MeasureRequest,
    files: PolicyFiles,
    corpus_files: Sequence[OpenFile],
    tokenizer: Any,
    progress: Progress,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Prepared:
    """The same for a policy and a tokenizer that are at hand, whether or not a checkpoint folder holds them."""
    progress.begin("reading the corpus", request.max_tokens)
    corpus = read_corpus(
        corpus_files,
        tokenizer=tokenizer,
        domain=request.domain,
        max_tokens=request.max_tokens,
        max_positions=files.geometry.max_positions,
        on_trajectory=progress.advance,
    )
    for file in corpus.files:
        if file.bad_lines:
            progress.note(f"{file.name}: {file.bad_lines} lines that are no JSON were skipped")
    _require_vocabulary(corpus, files.config.get_text_config(decoder=True).vocab_size)
    tree = build_tree([one.token_ids for one in corpus.trajectories], segment_tokens=request.segment_tokens)
    template = getattr(tokenizer, "chat_template", None)
    template_sha256 = hashlib.sha256(str(template).encode()).hexdigest() if template else None
    files = replace(files, record=replace(files.record, template_sha256=template_sha256))
    parts = plan_parts(tree, tokens_per_part=TOKENS_PER_PART)
    manifest = _new_manifest(request, files, corpus, tree, parts, device=device, dtype=dtype)
    return Prepared(
        files=files,
        corpus=corpus,
        tree=tree,
        parts=parts,
        manifest=manifest,
        device=device,
        dtype=dtype,
        device_map=request.device_map,
    )


def base_of(prepared: Prepared) -> Prepared:
    """The same measurement of the policy without its adapter: the corpus read and the tree cut already."""
    base = prepared.files.base
    assert base is not None
    policy = replace(base.record, template_sha256=prepared.manifest.policy.template_sha256)
    return replace(prepared, files=base, manifest=replace(prepared.manifest, policy=policy, label=base.name))


def _require_two_runs(request: MeasureRequest) -> None:
    if request.base_out is None:
        return
    if request.adapter is None:
        raise InputError(f"--base-out: {request.base_out}: a run of the base without its adapter; name one with --adapter DIR")
    if os.path.realpath(request.base_out) == os.path.realpath(request.out):
        raise InputError(f"--base-out: {request.base_out} is --out too; base and adapted policy are two runs")


def _require_one_run_to_skip_in(request: MeasureRequest) -> None:
    """What is left out is known only once the rest is measured; workers, or two runs of one corpus, would not agree on it."""
    if request.skip_bad and request.worker.count > 1:
        raise InputError(f"--skip-bad: {request.worker.count} workers; it takes one process, or leave it out")
    if request.skip_bad and request.base_out is not None:
        raise InputError("--skip-bad: with --base-out, whose two runs hold the same tokens; measure each by itself")


def _settled_policy(request: MeasureRequest, progress: Progress) -> str:
    """The policy, a hub id with its commit in place of a branch; InputError, before a fetch, where a run has another."""
    now = pin(request.policy, revision=request.revision)
    if now is None:
        return request.policy
    for out in (request.out, *([request.base_out] if request.base_out else [])):
        found = existing(out)
        if found is not None and (old := found.policy.revision) != now.commit:
            then = "" if old.startswith("sha256:") else f"go on with {now.name}@{old}, or "
            moved = f"{now.name}@{now.asked}" if now.asked else now.name
            raise InputError(f"{out}: was measured with {old}, {moved} is {now.commit} now; {then}choose another --out")
    if now.asked != now.commit:
        progress.note(f"{now.name}: {now.asked or 'the default branch'} is commit {now.commit}")
    return now.pinned


def _require_vocabulary(corpus: Corpus, vocabulary: int) -> None:
    for one in corpus.trajectories:
        if (largest := int(one.token_ids.max())) >= vocabulary:
            raise InputError(
                f"{one.source_file}: row {one.source_row}: token id {largest} is beyond the policy's vocabulary of {vocabulary}; "
                "another policy's tokenizer (--tokenizer)"
            )


def _new_manifest(
    request: MeasureRequest,
    files: PolicyFiles,
    corpus: Corpus,
    tree: PrefixTree,
    parts: Sequence[PartPlan],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Manifest:
    commit, dirty = tool_commit()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        label=request.label or files.name,
        state="measuring",
        policy=files.record,
        shape=files.shape,
        corpus=corpus_record(corpus, tree, segment_tokens=request.segment_tokens),
        settings=_settings(request, device, dtype),
        versions=versions(),
        tool_commit=commit,
        tool_dirty=dirty,
        command=request.command,
        started_at=utc_now(),
        finished_at=None,
        elapsed_s=0.0,
        planned_load_parts=len(parts),
        planned_tokens=sum(part.num_tokens for part in parts),
        halvings=0,
        parts=(),
        content_hash=None,
    )


def _settings(request: MeasureRequest, device: torch.device, dtype: torch.dtype) -> Settings:
    on_gpu = device.type == "cuda"
    return Settings(
        segment_tokens=request.segment_tokens,
        max_tokens=request.max_tokens,
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        dtype=str(dtype).removeprefix("torch."),
        attention_implementation=None,
        experts_implementation=None,
        kernels=kernels(),
        tokens_per_batch=0 if on_gpu else CPU_TOKENS_PER_BATCH,
        tokens_per_part=TOKENS_PER_PART,
        num_threads=torch.get_num_threads(),
        seed=SEED,
        walk=None,
    )


def existing(out: Path) -> Manifest | None:
    """The manifest of the run in `out`, None where there is no run yet."""
    return read_manifest(out) if (out / MANIFEST_NAME).exists() else None


def require_same(out: Path, found: Manifest, wanted: Manifest) -> None:
    """A run goes on only with what it began with; InputError names the first difference."""
    now = identity(wanted)
    for what, old in identity(found).items():
        if old != (new := now[what]):
            raise InputError(
                f"{out}: was measured with {what} {str(old)[:24]}, now {str(new)[:24]}; choose another --out, or remove the run"
            )
