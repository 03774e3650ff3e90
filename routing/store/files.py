"""Files written whole or not at all: a temporary name beside the target, fsync, rename.

A process killed while it writes leaves `NAME.tmp-PID` and never a torn NAME.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from routing.core.errors import InputError, StorageError

TEMPORARY_MARK = ".tmp-"


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it; makes the folder where it is missing.

    StorageError names the file and says whether the old or the new one is there. InputError where `path` is a link, a
    device, a folder: a rename would replace the thing itself.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: not a plain file, so not replaced; choose another --out")
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}")
    num_bytes, is_replaced = 0, False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            num_bytes = stream.tell()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        is_replaced = True
        _sync_folder(path.parent)
    except OSError as error:
        if is_replaced:
            said = "written, but a power cut may still undo it: its folder can't be flushed"
            raise StorageError(f"{path}: {said}, {error.strerror or error}") from error
        with contextlib.suppress(OSError):
            num_bytes = num_bytes or temporary.stat().st_size
        raise StorageError(
            f"{path}: not written, {error.strerror or error} after {num_bytes} bytes; nothing was replaced"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def require_replaceable(path: Path, *, what: str, marks: tuple[bytes, ...]) -> None:
    """InputError where `path` holds something else than `what`, which has every one of `marks` in it; absent is fine."""
    if path.is_file() and path.stat().st_size:
        raw = path.read_bytes()
        if not all(mark in raw for mark in marks):
            raise InputError(f"{path}: holds something else than {what}, so not replaced; choose another --out")


def write_bytes(path: Path, content: bytes) -> None:
    """`content` at `path`, whole or not at all."""
    write_atomically(path, lambda stream: stream.write(content))


def read_text(path: Path, *, what: str, max_bytes: int = 16_000_000, missing: str = "") -> str:
    """The UTF-8 text of a file that a user named as `what`; `missing` says how to make one.

    InputError where it is absent, a directory, too long or no UTF-8, StorageError where reading fails.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a directory, not a file; {what} is one")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file, {what} is one")  # a pipe would be waited for without end
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file{missing and f'; {missing}'}") from error
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror}") from error
    if len(raw) > max_bytes:
        raise InputError(f"{path}: {len(raw)} bytes, {what} has at most {max_bytes}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def read_json_object(path: Path, *, what: str) -> dict[str, Any]:
    """The JSON object in a file, with the errors of `read_text`; InputError for any other JSON or none."""
    try:
        body = json.loads(read_text(path, what=what))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON, {' '.join(str(error).split())[:120]}") from error
    if not isinstance(body, dict):
        raise InputError(f"{path}: no JSON object, {what} is one")
    return body


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_temporaries(folder: Path, *, of: Callable[[str], bool]) -> int:
    """Deletes what an interrupted writer of files named as `of` tells left in `folder`; returns how many."""
    split = [(entry, entry.name.partition(TEMPORARY_MARK)) for entry in folder.iterdir()]
    leftovers = [entry for entry, (name, mark, pid) in split if mark and pid.isdecimal() and of(name)]
    for entry in leftovers:
        entry.unlink(missing_ok=True)
    return len(leftovers)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
