"""Parts that workers commit without the manifest: each with a record of its own beside it, gathered into the manifest later.

    runs/NAME/loads-00007.parquet  loads-00007.json

The record is written after its part, whole or not at all. A part that no record and no manifest names is no part of the run.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from routing.core.errors import DamagedDataError, StorageError
from routing.store.files import remove_temporaries, write_bytes
from routing.store.manifest import SCHEMA_VERSION, Manifest, PartRecord, decode_part_record, encode, identity_hash
from routing.store.parquet import write_part
from routing.store.schemas import SCHEMAS

_PATTERN = "loads-[0-9][0-9][0-9][0-9][0-9].json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """A manifest with the parts that workers recorded; `is_changed` where the manifest on disk lacks some."""

    manifest: Manifest
    notices: tuple[str, ...]
    is_changed: bool


def record_path(folder: Path, part_name: str) -> Path:
    """Where a part's record stands."""
    return folder / Path(part_name).with_suffix(".json").name


def commit_part(
    folder: Path,
    manifest: Manifest,
    name: str,
    rows: pa.Table,
    *,
    rows_per_segment: int,
    elapsed_s: float,
    halvings: int,
) -> str | None:
    """Writes the part `name` of loads and its record; returns a notice where another worker had committed the same one.

    DamagedDataError where what the other one committed has different rows: nothing is replaced then.
    """
    path = folder / name
    if is_recorded(folder, manifest, name):
        if not pq.ParquetFile(os.path.abspath(path)).read().equals(rows.cast(SCHEMAS["loads"])):
            raise DamagedDataError(f"{path}: another worker counted other rows for the same tokens; measure this run anew")
        return f"{path}: another worker committed the same rows; ours are dropped"
    part = write_part(path, "loads", rows, rows_per_segment=rows_per_segment)
    made_for = identity_hash(manifest)
    record = PartRecord(
        schema_version=SCHEMA_VERSION, part=part, made_for=made_for, elapsed_s=elapsed_s, halvings=halvings
    )
    write_bytes(record_path(folder, name), encode(record))
    return None


def is_recorded(folder: Path, manifest: Manifest, name: str) -> bool:
    """Whether the manifest names this part, or a record of the same measurement does."""
    if any(part.name == name for part in manifest.parts):
        return True
    record = _read(record_path(folder, name))
    return record is not None and record.made_for == identity_hash(manifest)


def clear_unfinished(folder: Path, name: str) -> int:
    """Deletes what a dead worker left of the part `name`, which nobody else measures; returns how many files."""
    own = (name, record_path(folder, name).name)
    return remove_temporaries(folder, of=own.__contains__)


def record_faults(folder: Path, manifest: Manifest) -> dict[str, str]:
    """What is wrong with each damaged record, by its name: it can't be read, or contradicts the manifest."""
    named = {part.name: part for part in manifest.parts}
    faults = {}
    for path in sorted(folder.glob(_PATTERN)):
        try:
            record = _read(path)
        except DamagedDataError as error:
            faults[path.name] = str(error).removeprefix(f"{path}: ")
            continue
        is_ours = record is not None and record.made_for == identity_hash(manifest)
        if record is not None and is_ours and named.get(record.part.name, record.part) != record.part:
            faults[path.name] = "records other bytes than the manifest"
    return faults


def gather(folder: Path, manifest: Manifest, *, but: Collection[str] = ()) -> Gathered:
    """The manifest with every recorded part, loads in order; writes nothing. Records named in `but` are left out.

    DamagedDataError where a record and the manifest name the same part with different bytes.
    """
    made_for = identity_hash(manifest)
    parts = {part.name: part for part in manifest.parts}
    added: list[PartRecord] = []
    notices = []
    for path in sorted(folder.glob(_PATTERN)):
        record = None if path.name in but else _read(path)
        if record is None:
            continue
        if record.made_for != made_for:
            notices.append(f"{path}: of another measurement, ignored")
        elif (named := parts.setdefault(record.part.name, record.part)) is record.part:
            added.append(record)
        elif named != record.part:
            raise DamagedDataError(f"{path}: {record.part.name} was counted twice with different rows; measure this run again")
    loads = sorted((part for part in parts.values() if part.table == "loads"), key=lambda part: part.name)
    whole = replace(
        manifest,
        parts=(*(part for part in parts.values() if part.table != "loads"), *loads),
        elapsed_s=manifest.elapsed_s + sum(record.elapsed_s for record in added),
        halvings=manifest.halvings + sum(record.halvings for record in added),
    )
    return Gathered(manifest=whole if added else manifest, notices=tuple(notices), is_changed=bool(added))


def remove_records(folder: Path, manifest: Manifest) -> None:
    """Deletes the records of parts that the manifest on disk names by now."""
    for part in manifest.parts:
        if part.table == "loads":
            record_path(folder, part.name).unlink(missing_ok=True)


def _read(path: Path) -> PartRecord | None:
    """None where there is none; a record names the part beside it and no other."""
    if path.is_symlink():
        raise DamagedDataError(f"{path}: no plain file; a run holds its own files")
    try:
        record = decode_part_record(path.read_bytes(), where=str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror}") from error
    if record.part.table != "loads" or record.part.name != path.with_suffix(".parquet").name:
        raise DamagedDataError(f"{path}: records {record.part.name!r:.80}, not the part beside it")
    return record
