"""Is a part of a run the file that was written: by its size, its hash, its columns and its pages."""

import os
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from routing.core.errors import DamagedDataError, StorageError
from routing.store.files import sha256_of
from routing.store.manifest import Part
from routing.store.schemas import SCHEMAS


def require_part(folder: Path, part: Part) -> None:
    """DamagedDataError where a part is missing, cut, altered, no Parquet file, or of other columns than its table's."""
    _require(folder, part, part_fault(folder, part))


def require_decodable(folder: Path, part: Part) -> None:
    """DamagedDataError where a part can't be decoded, whatever its hash."""
    _require(folder, part, decoding_fault(folder, part))


def _require(folder: Path, part: Part, fault: str | None) -> None:
    if fault is not None:
        raise DamagedDataError(f"{folder / part.name}: {fault}; {next_step(folder)}")


def next_step(folder: Path) -> str:
    """What whoever reads of damage does about it, as typed into a shell."""
    return shlex.join(("routing", "repair", str(folder)))


def part_fault(folder: Path, part: Part) -> str | None:
    """What of a part is not as its manifest says, None where all is; StorageError where it can't be read."""
    path = folder / part.name
    if path.is_symlink() or not path.is_file():
        odd = "not a plain file" if path.exists() else "not on disk"
        return f"in the manifest, and {'a symbolic link' if path.is_symlink() else odd}"
    try:
        num_bytes = path.stat().st_size
        if num_bytes != part.num_bytes:
            return f"{num_bytes} bytes, the manifest says {part.num_bytes}"
        if sha256_of(path) != part.sha256:
            return "altered, its sha256 is not the manifest's"
        metadata = pq.ParquetFile(os.path.abspath(path))  # pyarrow takes ~ for the home folder
    except pa.ArrowInvalid:
        return "no Parquet file"
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror or error}") from error
    if not metadata.schema_arrow.equals(SCHEMAS[part.table]) or metadata.metadata.num_rows != part.num_rows:
        return f"other columns or rows than {part.table} should have"
    return None


def decoding_fault(folder: Path, part: Part) -> str | None:
    """Why a part can't be decoded, None where it can."""
    try:
        reader = pq.ParquetFile(os.path.abspath(folder / part.name))
        for group in range(reader.num_row_groups):
            reader.read_row_group(group)
    except (pa.ArrowException, OSError) as error:
        return f"can't be decoded, {' '.join(str(error).split())[:120]}"
    return None
