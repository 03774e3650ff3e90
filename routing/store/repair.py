"""What of a run is damaged, moved aside so that the next measurement makes it again; nothing is deleted.

    runs/NAME/damaged/loads-00003.parquet   as it was found; a second one of that name gets `.1`

Only the manifest says which parts are whole. Where it is gone or altered nothing else can take its place.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from routing.core.errors import DamagedDataError, StorageError
from routing.store.manifest import Manifest, Part
from routing.store.part_check import decoding_fault, part_fault
from routing.store.rollup import is_known_decoded
from routing.store.run import MANIFEST_NAME, RunWriter, is_whole, read_manifest, require_part_names, writing
from routing.store.worker_parts import gather, record_faults, record_path

DAMAGED_NAME = "damaged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """One file of a run that can't be trusted; `moved_to` is its new name, None where it is missing, or nothing was moved."""

    name: str
    fault: str
    moved_to: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """What was found, and the manifest as it is now: with damage it is unfinished again."""

    damages: tuple[Damage, ...]
    manifest: Manifest
    notices: tuple[str, ...]


def find_damage(folder: Path) -> Repair:
    """Every damaged file of the run in `folder`; touches nothing. DamagedDataError where the manifest itself is damaged."""
    manifest, damages, _ = _found(folder)
    return Repair(damages=damages, manifest=manifest, notices=())


def repair_run(folder: Path) -> Repair:
    """Moves what is damaged aside and takes it from the manifest; holds the run's lock as a writer does."""
    _trusted_manifest(folder)  # before a folder is made or locked
    with writing(folder) as notices:
        manifest, damages, lost = _found(folder)
        moved = tuple(replace(one, moved_to=_move_aside(folder, one.name)) for one in damages)
        if lost or not is_whole(manifest):
            kept = tuple(part for part in manifest.parts if part not in lost)
            state = "measuring" if manifest.recording is None else "importing"
            # The content hash stays: whoever finishes the run again says whether the same rows came out.
            writer = RunWriter(folder, manifest)
            writer.update(parts=kept, state=state, finished_at=None)
            manifest = writer.manifest
        return Repair(damages=moved, manifest=manifest, notices=notices)


def _found(folder: Path) -> tuple[Manifest, tuple[Damage, ...], tuple[Part, ...]]:
    """(the manifest, what is damaged, the manifest's own parts among it)."""
    manifest = _trusted_manifest(folder)
    records = record_faults(folder, manifest) if manifest.state != "finished" else {}
    damages = [Damage(name=name, fault=fault, moved_to=None) for name, fault in records.items()]
    gathered = gather(folder, manifest, but=records).manifest if manifest.state != "finished" else manifest
    is_decoded = manifest.state != "finished" or is_known_decoded(folder, manifest)
    lost = []
    for part in gathered.parts:
        fault = part_fault(folder, part) or (None if is_decoded else decoding_fault(folder, part))
        if fault is None:
            continue
        damages.append(Damage(name=part.name, fault=fault, moved_to=None))
        if part in manifest.parts:
            lost.append(part)
        else:
            damages.append(Damage(name=record_path(folder, part.name).name, fault="records a damaged part", moved_to=None))
    return manifest, tuple(damages), tuple(lost)


def _trusted_manifest(folder: Path) -> Manifest:
    try:
        manifest = read_manifest(folder)
        require_part_names(folder, manifest)
    except DamagedDataError as error:
        if not os.path.lexists(folder / MANIFEST_NAME):
            raise  # says what to do already
        what = "only the manifest says which parts are whole: put a copy of it back, or measure into another --out"
        raise DamagedDataError(f"{error}; {what}") from error
    return manifest


def _move_aside(folder: Path, name: str) -> str | None:
    source = folder / name
    if not os.path.lexists(source):
        return None
    target = folder / DAMAGED_NAME / name
    try:
        target.parent.mkdir(exist_ok=True)
        number = 0
        while os.path.lexists(target):
            number += 1
            target = target.with_name(f"{name}.{number}")
        source.rename(target)
    except OSError as error:
        raise StorageError(f"{source}: can't be moved to {target.parent}, {error.strerror}") from error
    return f"{DAMAGED_NAME}/{target.name}"
