"""What the two imports share: the manifest of a run that another engine recorded, and writing it whole or not at all."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.core.shapes import ModelShape
from routing.corpus.hashing import hash_path
from routing.corpus.sequences import CorpusFile
from routing.corpus.strict_json import printable
from routing.stages.corpus_record import RunSizes, counts, require_plain
from routing.stages.provenance import tool_commit, utc_now, versions
from routing.store.content import content_hash
from routing.store.loads import loads_table, require_conserved
from routing.store.manifest import SCHEMA_VERSION, CorpusRecord, Manifest, PolicyRecord
from routing.store.run import MANIFEST_NAME, Run, RunWriter, read_manifest, require_run_name, run_name, writing
from routing.store.settings import Recording, Settings

UNKNOWN = "unknown"  # stands where a measured run has a hash or a name; never 64 hexadecimal digits
ROWS_PER_PART = 1 << 22  # of loads; four row groups


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportResult(RunSizes):
    """What was imported; `origin` says that no forward pass of ours made it. `missing_layers` is null where nobody knows."""

    origin: str
    missing_layers: tuple[int, ...] | None
    repairs: dict[str, int]
    unknown: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """Everything that a run is written from, checked. `loads` gives the routed rows [S, L, E] of a range of segments.

    `repairs` may grow while loads are counted; the manifest gets what it holds once all are.
    """

    label: str
    architecture: str
    config_sha256: str
    shape: ModelShape
    corpus: CorpusRecord
    tree: PrefixTree
    tables: Mapping[str, pa.Table]
    loads: Callable[[range], npt.NDArray[np.int32]]
    segment_tokens: int
    recording: Recording
    repairs: Counter[str]
    command: tuple[str, ...]


def settled_label(out: Path, *, label: str | None, engine: str | None) -> str:
    """The run's label, its folder's name unless told; InputError where the folder, the label or the engine can't be taken."""
    require_run_name(out)
    _require_free(out)
    settled = run_name(out) if label is None else label
    require_plain("--label", settled)
    if engine is not None:
        require_plain("--engine", engine)
    return settled


def _require_free(out: Path) -> None:
    """InputError where `out` holds a run that an import would replace; an unfinished import is begun again."""
    if (out / MANIFEST_NAME).exists():
        found = read_manifest(out)
        if found.state == "finished" or found.recording is None:
            raise InputError(f"{out}: holds a {found.state} run of {found.origin} loads; choose another --out, or remove it")


def file_account(path: Path, name: str, format: str, *, rows: int, kept: int, refused: int) -> CorpusFile:
    """A source file with its sha256."""
    shown = printable(str(path))
    sha256, num_bytes = hash_path(path, name=shown)
    account = {"rows": rows, "kept": kept, "refused": refused, "not_taken": rows - kept - refused, "bad_lines": 0}
    return CorpusFile(name=printable(name), path=shown, format=format, sha256=sha256, num_bytes=num_bytes, **account)


def write_import(out: Path, imported: Imported, note: Callable[[str], None]) -> ImportResult:
    """Writes the run. Stopped on the way it stays `importing`, which no query reads, and the same import begins it again."""
    shape, tree = imported.shape, imported.tree
    per_part = max(1, ROWS_PER_PART // (len(shape.moe_layers) * shape.num_experts))
    parts = [range(start, min(start + per_part, len(tree.segments))) for start in range(0, len(tree.segments), per_part)]
    with writing(out) as notices:
        for notice in notices:
            note(notice)
        _require_free(out)
        writer = RunWriter(out, _manifest(imported, num_parts=len(parts)))
        writer.update()
        for table, rows in imported.tables.items():
            writer.commit(table, 0, rows)
        for index, segments in enumerate(parts):
            _write_part(writer, index, segments, imported)
        finished = Run(folder=out, manifest=writer.manifest)
        repairs = {name: count for name, count in sorted(imported.repairs.items()) if count}
        recording = replace(imported.recording, repairs=repairs)
        writer.update(content_hash=content_hash(finished), state="finished", finished_at=utc_now(), recording=recording)
    return _result(out, writer.manifest)


def _write_part(writer: RunWriter, index: int, segments: range, imported: Imported) -> None:
    shape, loads_SLE = imported.shape, imported.loads(segments)
    tokens_S = np.array([imported.tree.segments[segment].num_tokens for segment in segments], dtype=np.int64)
    layers = shape.moe_layers
    require_conserved(loads_SLE, tokens_S, first_segment=segments.start, top_k=shape.top_k, layers=layers)
    rows = loads_table(loads_SLE, first_segment=segments.start, layers=layers)
    writer.commit("loads", index, rows, rows_per_segment=len(layers) * shape.num_experts)


def _manifest(imported: Imported, *, num_parts: int) -> Manifest:
    commit, dirty = tool_commit()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        label=imported.label,
        state="importing",
        policy=PolicyRecord(
            name=imported.label,
            revision=UNKNOWN,
            architecture=imported.architecture,
            # two labels are two policies: which weights made the routes no file says
            weights_sha256=f"{UNKNOWN}: {imported.label}",
            config_sha256=imported.config_sha256,
            tokenizer_sha256=UNKNOWN,
            template_sha256=None,
        ),
        shape=imported.shape,
        corpus=imported.corpus,
        settings=_settings(imported.segment_tokens),
        versions=versions(),
        tool_commit=commit,
        tool_dirty=dirty,
        command=imported.command,
        started_at=utc_now(),
        finished_at=None,
        elapsed_s=0.0,
        planned_load_parts=num_parts,
        planned_tokens=0,
        halvings=0,
        parts=(),
        content_hash=None,
        recording=imported.recording,
    )


def _settings(segment_tokens: int) -> Settings:
    """No device of ours ran anything."""
    return Settings(
        segment_tokens=segment_tokens,
        max_tokens=None,
        device=UNKNOWN,
        device_name=UNKNOWN,
        dtype=UNKNOWN,
        attention_implementation=None,
        experts_implementation=None,
        kernels={},
        tokens_per_batch=0,
        tokens_per_part=0,
        num_threads=0,
        seed=0,
        walk=None,
    )


def _result(out: Path, manifest: Manifest) -> ImportResult:
    recording = manifest.recording
    assert recording is not None
    return ImportResult(**counts(out, manifest), origin=manifest.origin, **_told(recording))


def _told(recording: Recording) -> dict[str, Any]:
    return {name: getattr(recording, name) for name in ("missing_layers", "repairs", "unknown")}
