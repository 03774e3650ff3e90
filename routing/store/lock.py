"""One writer a run, or several workers that share it: a lock file that says who holds it.

The kernel's lock tells whether the holder on this host still lives; the text tells people, and other hosts, who it is.
A run directory on a shared file system needs one whose flock reaches all hosts (NFS, Lustre mounted with flock, GPFS).
"""

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from routing.core.errors import StorageError

LOCK_NAME = "lock"
MANIFEST_LOCK_NAME = "manifest.lock"
PARTS_LOCK_NAME = "parts.lock"
LOCK_NAMES = (LOCK_NAME, MANIFEST_LOCK_NAME, PARTS_LOCK_NAME)
_TEXT_BYTES = 512  # a worker's text is padded to this, so that two who come first together can't mix theirs


@contextlib.contextmanager
def writer_lock(folder: Path) -> Iterator[tuple[str, ...]]:
    """Holds the run in `folder` for this process; yields notices (a dead holder's lock taken over).

    StorageError where another process of this host holds it, or where another host's lock is found.
    """
    path = folder / LOCK_NAME
    handle = _locked(path, fcntl.LOCK_EX)
    try:
        notices = _take_over(path, handle)
        try:
            _sign(path, handle, is_worker=False)
            yield notices
        finally:
            _remove_locks(folder)
    finally:
        os.close(handle)


@contextlib.contextmanager
def worker_lock(folder: Path) -> Iterator[tuple[str, ...]]:
    """Holds the run in `folder` together with other workers, yields notices; the last to leave removes the lock files.

    StorageError where a process that wants the run for itself holds it, on this host or by its text on another.
    """
    path = folder / LOCK_NAME
    handle = _locked(path, fcntl.LOCK_SH)
    try:
        notices: tuple[str, ...] = ()
        is_first = not _holder(handle).get("is_worker")  # a fellow worker's text stands for all
        if is_first:
            notices = _take_over(path, handle)
        try:
            if is_first:
                _sign(path, handle, is_worker=True)
            yield notices
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_locks(folder)
    finally:
        os.close(handle)


@contextlib.contextmanager
def manifest_lock(folder: Path) -> Iterator[None]:
    """Keeps other workers from the manifest, waiting for its turn; only for who holds `worker_lock`."""
    with _opened(folder / MANIFEST_LOCK_NAME) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def part_claims(folder: Path) -> Iterator[Callable[[int], AbstractContextManager[bool]]]:
    """Yields `claim(index)`: holds a part for this worker, and says whether it does; only for who holds `worker_lock`.

    One byte of one file a part, so that the kernel lets go of what a dead worker held. Never waits.
    """
    with _opened(folder / PARTS_LOCK_NAME) as handle:

        @contextlib.contextmanager
        def claim(index: int) -> Iterator[bool]:
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except (BlockingIOError, PermissionError):  # which of the two, systems differ in
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(handle, fcntl.LOCK_UN, 1, index)

        yield claim


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = _open(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise StorageError(f"{path}: can't lock the run, {error.strerror}") from error


def _remove_locks(folder: Path) -> None:
    """For who holds the run alone; the run's own lock goes last, since until then nobody else comes in."""
    for name in reversed(LOCK_NAMES):
        (folder / name).unlink(missing_ok=True)


def _locked(path: Path, kind: int) -> int:
    while True:
        handle = _open(path)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(handle)
            os.close(handle)
            if kind == fcntl.LOCK_SH and holder.get("is_worker"):  # the last worker is just leaving
                time.sleep(0.01)
                continue
            raise StorageError(f"{path}: the run is being written by pid {holder.get('pid')} on {holder.get('host')}") from error
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # the last holder removed the file between our two calls


def _sign(path: Path, handle: int, *, is_worker: bool) -> None:
    """Writes who holds the lock; a worker's text replaces its like in place, so that two who come first leave one of them."""
    text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()} | ({"is_worker": True} if is_worker else {})).encode()
    try:
        if not is_worker:
            os.ftruncate(handle, 0)
        os.pwrite(handle, text.ljust(_TEXT_BYTES) if is_worker else text, 0)
    except OSError as error:
        raise StorageError(f"{path}: can't lock the run, {error.strerror}") from error


def _take_over(path: Path, handle: int) -> tuple[str, ...]:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise StorageError(f"{path}: no plain file, so no lock of this program; choose another folder")
    holder = _holder(handle)
    if not holder:
        if os.fstat(handle).st_size:
            raise StorageError(f"{path}: no lock of this program; choose another folder")
        return ()
    if holder.get("host") != socket.gethostname():
        os_hint = f"if that process is gone, delete {path}"
        raise StorageError(f"{path}: held by pid {holder.get('pid')} on host {holder.get('host')}; {os_hint}")
    return (f"{path}: pid {holder.get('pid')} is gone, its lock is taken over",)


def _holder(handle: int) -> dict[str, object]:
    with contextlib.suppress(ValueError, RecursionError):
        holder = json.loads(os.pread(handle, 4096, 0))
        if isinstance(holder, dict):
            return holder
    return {}
