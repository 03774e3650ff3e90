"""Files written whole or not at all: a temporary name beside the target, fsync, rename.

A process killed while it writes leaves `NAME.tmp-PID` and never a torn NAME.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from routing.core.errors import StorageError

TEMPORARY_MARK = ".tmp-"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it; makes the folder where it is missing.

    StorageError names the file and how far it got.
    """
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}")
    num_bytes = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            num_bytes = stream.tell()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            num_bytes = num_bytes or temporary.stat().st_size
        raise StorageError(
            f"{path}: not written, {error.strerror or error} after {num_bytes} bytes; nothing was replaced"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """`content` at `path`, whole or not at all."""
    write_atomically(path, lambda stream: stream.write(content))


def write_parquet(path: Path, table: pa.Table, *, row_group_rows: int) -> None:
    """One Parquet file: zstd, page checksums, `row_group_rows` rows a group (at least one)."""

    def write(stream: IO[bytes]) -> None:
        pq.write_table(table, stream, compression="zstd", row_group_size=max(1, row_group_rows), write_page_checksum=True)

    write_atomically(path, write)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_temporaries(folder: Path) -> int:
    """Deletes what an interrupted writer left in `folder`; returns how many."""
    leftovers = [entry for entry in folder.iterdir() if TEMPORARY_MARK in entry.name]
    for entry in leftovers:
        entry.unlink(missing_ok=True)
    return len(leftovers)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
