"""What a run's manifest says, in the words of the report."""

import shlex
from collections import Counter
from dataclasses import fields
from typing import Any

from routing.audit.facts import CorpusFile, Pairs, RunFacts, markings
from routing.audit.words import count, gigabytes
from routing.corpus.sequences import NO_ROUTER
from routing.store.manifest import Manifest
from routing.store.run import Run


def run_facts(name: str, run: Run, tables: dict[str, Any]) -> RunFacts:
    """The manifest of `run` and what was read from its tables, by field; refusals as counts, never a word of a trajectory."""
    manifest = run.manifest
    corpus, shape = manifest.corpus, manifest.shape
    columns = [field.name for field in fields(CorpusFile)]
    return RunFacts(
        name=name,
        run=run.name,
        label=manifest.label,
        origin=manifest.origin,
        policy=manifest.policy.name,
        architecture=manifest.policy.architecture,
        markings=markings(manifest.label, manifest.policy.name, *(file.name for file in corpus.files)),
        num_layers=shape.num_layers,
        num_moe_layers=len(shape.moe_layers),
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        tokens_packed=corpus.tokens_packed,
        tokens_logical=corpus.tokens_logical,
        num_trajectories=corpus.num_trajectories,
        files=tuple(CorpusFile(**{column: getattr(file, column) for column in columns}) for file in corpus.files),
        refused=tuple(sorted(Counter(one.reason for one in corpus.refusals).items())),
        num_without_router=sum(one.reason == NO_ROUTER for one in corpus.refusals),
        provenance=_run_provenance(run),
        content_hash=manifest.content_hash,
        corpus_hash=corpus.corpus_hash,
        device=_device(manifest),
        is_dirty=bool(manifest.tool_dirty),
        **tables,
    )


def _run_provenance(run: Run) -> Pairs:
    manifest = run.manifest
    policy, settings = manifest.policy, manifest.settings
    num_bytes = sum(part.num_bytes for part in manifest.parts)
    return (
        ("content hash (counts)", manifest.content_hash or ""),
        ("corpus hash", manifest.corpus.corpus_hash),
        ("policy revision", policy.revision),
        ("weights sha256", policy.weights_sha256),
        ("config sha256", policy.config_sha256),
        ("tokenizer sha256", policy.tokenizer_sha256),
        ("chat template sha256", policy.template_sha256 or ""),
        ("command", shlex.join(("routing", *manifest.command))),
        *_origin(manifest),
        ("segments", f"at most {count(settings.segment_tokens)} tokens"),
        ("batches halved for memory", count(manifest.halvings)),
        ("parts", f"{count(len(manifest.parts))} files, {gigabytes(num_bytes)} (1 GB = 1e9 bytes)"),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
        ("commit", commit_text(manifest.tool_commit, manifest.tool_dirty)),
    )


def _device(manifest: Manifest) -> str:
    """`cpu (x86_64), float32`; empty where another engine made the loads."""
    settings = manifest.settings
    return f"{settings.device} ({settings.device_name}), {settings.dtype}" if manifest.recording is None else ""


def _origin(manifest: Manifest) -> Pairs:
    """How the loads came: by forward passes here, or recorded elsewhere and imported."""
    settings, recording = manifest.settings, manifest.recording
    if recording is None:
        return (
            ("measured", f"{manifest.started_at} to {manifest.finished_at}, forward passes {manifest.elapsed_s:,.1f} s"),
            ("device", f"{_device(manifest)}, {settings.experts_implementation} experts"),
        )
    missing = recording.missing_layers
    told = "not known" if missing is None else ", ".join(map(str, missing)) or "none"
    repairs = ", ".join(f"{name} {count(number)}" for name, number in recording.repairs.items())
    return (
        ("recorded", f"{recording.kind} by {recording.engine or 'another engine'}, imported {manifest.started_at}"),
        ("not known", ", ".join(recording.unknown)),
        ("MoE layers not recorded", told),
        ("repaired on the way in", repairs or "nothing"),
    )


def commit_text(commit: str | None, is_dirty: bool | None) -> str:
    """A commit and whether the checkout held more than it; empty where nobody knows."""
    return "" if commit is None else f"{commit}{', with uncommitted changes' if is_dirty else ''}"
