"""What a manifest says of the trajectories that were read, and of a run's sizes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.corpus.sequences import ReadCorpus
from routing.store.manifest import CorpusRecord, FileRecord, Manifest, RefusalRecord
from routing.store.run import run_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSizes:
    """What every result of writing a run begins with."""

    run: str
    tokens_logical: int
    tokens_packed: int
    segments: int
    trajectories: int
    refused: int
    layers: int
    experts: int
    top_k: int


def corpus_record(corpus: ReadCorpus, tree: PrefixTree, *, segment_tokens: int) -> CorpusRecord:
    """The counts of `corpus` and `tree`; the hash is over the trajectories in order and the segment cut."""
    digest = hashlib.sha256(f"segment_tokens={segment_tokens}\n".encode())
    for one in corpus.trajectories:
        digest.update(
            "\0".join((one.trajectory_hash, one.unit, one.stratum, one.source_file, str(one.source_row))).encode() + b"\n"
        )
    names = FileRecord.__slots__
    return CorpusRecord(
        corpus_hash=digest.hexdigest(),
        files=tuple(FileRecord(**{name: getattr(one, name) for name in names}) for one in corpus.files),
        refusals=tuple(
            RefusalRecord(**{name: getattr(one, name) for name in RefusalRecord.__slots__}) for one in corpus.refusals
        ),
        normalised=dict(sorted(corpus.normalised.items())),
        tokens_logical=tree.tokens_logical,
        tokens_packed=tree.tokens_packed,
        num_trajectories=len(corpus.trajectories),
        num_segments=len(tree.segments),
    )


def counts(out: Path, manifest: Manifest) -> dict[str, Any]:
    """The fields of `RunSizes`, which a plan has too, from a manifest."""
    return {
        "run": run_name(out),
        "tokens_logical": manifest.corpus.tokens_logical,
        "tokens_packed": manifest.corpus.tokens_packed,
        "segments": manifest.corpus.num_segments,
        "trajectories": manifest.corpus.num_trajectories,
        "refused": len(manifest.corpus.refusals),
        "layers": len(manifest.shape.moe_layers),
        "experts": manifest.shape.num_experts,
        "top_k": manifest.shape.top_k,
    }


def require_plain(flag: str, label: str) -> None:
    """Labels stand in tables, YAML and pages: InputError for what none of them can show."""
    is_address = "://" in label and "@" in label  # which may hold a password
    if not label.strip() or not label.isprintable() or len(label) > 100 or is_address:
        raise InputError(f"{flag}: {label[:40]!a} is no label; printable text, at most 100 characters, no user@ of an address")
