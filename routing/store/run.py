"""A run directory: written part by part, read only through its manifest.

    runs/NAME/manifest.json  segments-00000.parquet  trajectories-00000.parquet  paths-00000.parquet  loads-00000.parquet ...

While several workers measure, what they committed stands in records beside the parts (`routing.store.worker_parts`).

Needs dataclasses, json and pyarrow only, so that a measuring machine needs nothing else.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from routing.core.errors import DamagedDataError, InputError, StorageError
from routing.store.files import TEMPORARY_MARK, remove_temporaries, write_bytes
from routing.store.lock import LOCK_NAMES, manifest_lock, worker_lock, writer_lock
from routing.store.manifest import Manifest, decode, encode
from routing.store.parquet import write_part
from routing.store.part_check import next_step, require_decodable, require_part
from routing.store.rollup import is_known_decoded
from routing.store.schemas import SCHEMAS
from routing.store.worker_parts import gather

MANIFEST_NAME = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_OWN_FILE = re.compile(rf"{re.escape(MANIFEST_NAME)}|({'|'.join(SCHEMAS)})-\d{{5}}\.parquet|loads-\d{{5}}\.json")
_PART = re.compile(rf"({'|'.join(SCHEMAS)})-\d{{5}}\.parquet")
_OF_ALL_WORKERS = re.compile(rf"{re.escape(MANIFEST_NAME)}|(segments|trajectories|paths)-\d{{5}}\.parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """An opened run: its parts exist and match their sha256. `notices` are for the user, one line each."""

    folder: Path
    manifest: Manifest
    notices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return run_name(self.folder)

    def part_paths(self, table: str) -> list[Path]:
        """The files of one table, in order, from the manifest's list and never from a glob."""
        return [self.folder / part.name for part in self.manifest.parts if part.table == table]

    def read(self, table: str) -> pa.Table:
        """One whole table in memory; not for `loads` of a large run."""
        # ParquetFile, not read_table, which imports pyarrow.dataset and pandas: a third of a second.
        empty = SCHEMAS[table].empty_table()
        return pa.concat_tables([empty, *(pq.ParquetFile(os.path.abspath(path)).read() for path in self.part_paths(table))])


def run_name(folder: Path) -> str:
    """The folder's own name, links followed; a loop of links keeps the name it was given."""
    return Path(os.path.realpath(folder)).name  # Path.resolve raises on a loop


def part_name(table: str, index: int) -> str:
    """`loads-00003.parquet`: the same for the same plan, so that a rerun replaces and never adds."""
    return f"{table}-{index:05d}.parquet"


def require_run_name(folder: Path) -> None:
    """InputError where the folder's own name is no run name, or its path no text that Parquet readers take."""
    try:
        os.fspath(folder).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{os.fsencode(folder)!r}: a path that is not UTF-8; rename the folder") from error
    if not _NAME.fullmatch(run_name(folder)):
        raise InputError(f"{folder}: a run's name takes letters, digits, '.', '_' and '-', at most 64, and no leading '.'")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the run in `folder`; InputError where there is no run, DamagedDataError where only its manifest is gone."""
    path = folder / MANIFEST_NAME
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise DamagedDataError(f"{path}: no plain file; a run holds its own files")
        return decode(path.read_bytes(), where=str(path))
    except FileNotFoundError as error:
        if folder.is_dir() and any(_PART.fullmatch(name) for name in os.listdir(folder)):
            raise DamagedDataError(
                f"{path}: gone, and the parts beside it don't say whose they are; "
                "put a copy of it back, or measure into another --out"
            ) from error
        raise InputError(
            f"{folder}: no run here (no {MANIFEST_NAME}); measure one: routing measure POLICY CORPUS --out {folder}"
        ) from error
    except NotADirectoryError as error:
        raise InputError(f"{folder}: a run is a directory") from error
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror}") from error


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Opens a finished or unfinished run and verifies every part before any number is read from it.

    DamagedDataError names the part that is missing, cut, altered, no Parquet file, or of other columns.
    """
    folder = Path(folder)
    require_run_name(folder)
    manifest = read_manifest(folder)
    told: tuple[str, ...] = ()
    if manifest.state != "finished":
        gathered = gather(folder, manifest)
        manifest, told = gathered.manifest, gathered.notices
    require_part_names(folder, manifest)
    for part in manifest.parts:
        require_part(folder, part)
    if manifest.state == "finished":
        _require_whole(folder, manifest)
    listed = {part.name for part in manifest.parts} | {MANIFEST_NAME}
    strays = sorted(
        e.name for e in folder.iterdir() if e.suffix == ".parquet" and e.name not in listed and TEMPORARY_MARK not in e.name
    )
    notices = tuple(f"{folder}: {name!a} is not in the manifest, ignored" for name in strays)
    return Run(folder=folder, manifest=manifest, notices=(*told, *notices))


def _require_whole(folder: Path, manifest: Manifest) -> None:
    """DamagedDataError where a finished run lacks a part or holds one that can't be decoded, whatever its hash."""
    if (fault := _missing_table(manifest)) is not None:
        raise DamagedDataError(f"{folder / MANIFEST_NAME}: {fault}; {next_step(folder)}")
    if is_known_decoded(folder, manifest):
        return
    for part in manifest.parts:
        require_decodable(folder, part)


def is_whole(manifest: Manifest) -> bool:
    """Whether a manifest that says finished names all the parts that its run has."""
    return manifest.state != "finished" or _missing_table(manifest) is None


def _missing_table(manifest: Manifest) -> str | None:
    names = [part.table for part in manifest.parts]
    for table in SCHEMAS:
        wanted = manifest.planned_load_parts if table == "loads" else 1
        if names.count(table) != wanted:
            return f"a finished run with {names.count(table)} parts of {table}, not {wanted}"
    return None


def require_finished(run: Run) -> None:
    """InputError where measuring or importing stopped before the last part."""
    done = len(run.part_paths("loads"))
    if run.manifest.state != "finished":
        verb = "measure" if run.manifest.recording is None else "import"
        raise InputError(
            f"{run.folder}: unfinished, {done} of {run.manifest.planned_load_parts} parts; run the same routing {verb} again"
        )


def require_part_names(folder: Path, manifest: Manifest) -> None:
    """DamagedDataError where a part's name leads out of the run, or its table is none of a run."""
    for part in manifest.parts:
        if not _NAME.fullmatch(part.name) or part.table not in SCHEMAS:
            raise DamagedDataError(f"{folder / MANIFEST_NAME}: {part.name!r:.80} is no part of a run")


class RunWriter:
    """Adds parts to a run that this process holds; every part is on disk whole before the manifest names it."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def commit(self, table: str, index: int, rows: pa.Table, *, rows_per_segment: int = 1, **changes: object) -> None:
        """Writes one part, then the manifest with it; `changes` are other manifest fields to set."""
        part = write_part(self.folder / part_name(table, index), table, rows, rows_per_segment=rows_per_segment)
        self.update(parts=(*(p for p in self.manifest.parts if p.name != part.name), part), **changes)

    def has(self, table: str, index: int) -> bool:
        """Whether the manifest already names this part."""
        return any(part.name == part_name(table, index) for part in self.manifest.parts)

    def update(self, **changes: object) -> None:
        """Replaces manifest fields, on disk too."""
        self.manifest = replace(self.manifest, **changes)  # type: ignore[arg-type]
        write_bytes(self.folder / MANIFEST_NAME, encode(self.manifest))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[tuple[str, ...]]:
    """Makes the folder, holds its lock and clears what an interrupted writer left; yields notices.

    InputError, before anything is touched, where the folder holds other things and no run.
    """
    _make_folder(folder)
    with writer_lock(folder) as notices:
        removed = remove_temporaries(folder, of=lambda name: _OWN_FILE.fullmatch(name) is not None)
        yield (*notices, *((f"{folder}: {removed} unfinished files of an earlier writer removed",) if removed else ()))


@contextlib.contextmanager
def working(folder: Path) -> Iterator[tuple[str, ...]]:
    """Like `writing`, together with other workers of the run; what an interrupted one left is not cleared."""
    _make_folder(folder)
    with worker_lock(folder) as notices:
        yield notices


@contextlib.contextmanager
def manifest_turn(folder: Path) -> Iterator[None]:
    """A worker's turn to read and write the manifest and what all workers share; waits for those of the others."""
    with manifest_lock(folder):
        remove_temporaries(folder, of=lambda name: _OF_ALL_WORKERS.fullmatch(name) is not None)
        yield


def _make_folder(folder: Path) -> None:
    require_run_name(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_own(folder)
    except OSError as error:
        raise StorageError(f"{folder}: can't be made a run directory, {error.strerror}") from error


def _require_own(folder: Path) -> None:
    """A killed first write may have left temporaries and no manifest; anything else is somebody's."""
    if (folder / MANIFEST_NAME).exists():
        return
    for entry in sorted(folder.iterdir()):
        name, mark, _ = entry.name.partition(TEMPORARY_MARK)
        if entry.name not in LOCK_NAMES and not (mark and _OWN_FILE.fullmatch(name)):
            raise InputError(f"{folder}: holds {entry.name!r} and no run; choose an empty or new --out")
