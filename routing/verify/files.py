"""The files of a run by their bytes: manifest, parts and the three tables of the prefix tree, each read and hashed again."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from routing.verify.finding import Finding, finding

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """A finished run as its files say it: `body` is the manifest's JSON, `tree` its segments, trajectories and paths."""

    folder: Path
    body: dict[str, Any]
    tree: dict[str, pa.Table]

    @property
    def loads_paths(self) -> list[Path]:
        """The parts of loads in the manifest's order."""
        return [self.folder / part["name"] for part in self.body["parts"] if part["table"] == "loads"]


def read_run_files(folder: Path) -> RunFiles:
    """Reads what of a run fits in memory; the loads are left on disk. The run was opened before: files are there and decode."""
    body = json.loads((folder / "manifest.json").read_bytes())
    names = {part["table"]: part["name"] for part in body["parts"] if part["table"] != "loads"}
    return RunFiles(folder=folder, body=body, tree={table: read_part(folder / name) for table, name in names.items()})


def read_part(path: Path) -> pa.Table:
    """One part, whole, in memory."""
    return pq.ParquetFile(os.path.abspath(path)).read()  # pyarrow takes ~ for the home folder


def integers(rows: pa.Table, name: str, *, null: int = 0) -> Integers:
    """A column of int32 as int64, `null` in the place of none."""
    column = rows[name].fill_null(null).combine_chunks()
    # pyarrow's own conversion would import pandas, a third of a second
    return np.frombuffer(column.buffers()[1], dtype="<i4", count=len(column), offset=4 * column.offset).astype(np.int64)


def file_findings(files: RunFiles) -> list[Finding]:
    """The manifest's own hash, and bytes, rows and sha256 of every part."""
    sealed = dict(files.body)
    written = sealed.pop("manifest_sha256")
    found = hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()
    manifest = [] if found == written else [f"manifest.json: sha256 {found[:12]}, it says {written[:12]}"]
    parts = files.body["parts"]
    faults = [text for part in parts for text in _part_faults(files.folder / part["name"], part)]
    return [
        finding("manifest_sha256", "manifests", 1, manifest, is_damage=True),
        finding("part_sha256", "parts", len(parts), faults, is_damage=True),
    ]


def _part_faults(path: Path, part: dict[str, Any]) -> Iterator[str]:
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            num_bytes += len(chunk)
    num_rows = pq.ParquetFile(os.path.abspath(path)).metadata.num_rows
    for what, found in (("num_bytes", num_bytes), ("num_rows", num_rows), ("sha256", digest.hexdigest())):
        if found != part[what]:
            yield f"{path.name}: {what} {str(found)[:12]}, the manifest says {str(part[what])[:12]}"
            return
