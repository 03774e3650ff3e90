"""A disk that fails at one call, put under the one place that writes our files: `routing.store.files`."""

import contextlib
import errno
import io
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from routing.core.errors import StorageError
from routing.store import files
from routing.store.files import TEMPORARY_MARK
from routing.store.lock import LOCK_NAME, MANIFEST_LOCK_NAME

# What fails, and how. A failing write is torn: half of its bytes are on the disk before the error.
FAULTS = {
    "open": errno.ENOSPC,
    "write": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.EIO,
    "open folder": errno.EIO,
    "read": errno.EIO,
}


KILL = "kill"  # no kind of call: the process kills itself with -9 at the nth call of any


class FaultyDisk:
    """Fails the `nth` call of one kind, or dies there; `at_fault` is then what stood below `folder`."""

    def __init__(self, kind: str, nth: int, folder: Path) -> None:
        self.kind, self.nth, self.folder = kind, nth, folder
        self.num_calls = 0
        self.at_fault: dict[str, bytes] | None = None

    def reach(self, kind: str, before_error: Callable[[], object] = lambda: None) -> None:
        """One call of `kind`; OSError where it is the one that fails."""
        if self.kind not in (kind, KILL):
            return
        self.num_calls += 1
        if self.num_calls == self.nth:
            before_error()
            if self.kind == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            self.at_fault = whole_files(self.folder)
            raise OSError(FAULTS[kind], os.strerror(FAULTS[kind]))

    def open(self, path: str | os.PathLike[str], mode: str) -> io.BufferedIOBase:
        """As the built-in; a file to write is buffered whole, so that it is one write."""
        if mode == "rb":
            self.reach("read")
            return open(path, mode)
        self.reach("open")
        return io.BufferedWriter(_File(path, self), buffer_size=1 << 24)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Our files are written to this disk."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "os", _Calls(self))
            patch.setattr(files, "open", self.open, raising=False)
            yield


class _Calls:
    """The module `os` with the calls of the writer counted."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        self._disk.reach("fsync")
        os.fsync(handle)

    def replace(self, old: os.PathLike[str], new: os.PathLike[str]) -> None:
        self._disk.reach("rename")
        os.replace(old, new)

    def open(self, path: os.PathLike[str], flags: int) -> int:
        self._disk.reach("open folder")
        return os.open(path, flags)


class _File(io.FileIO):
    def __init__(self, path: str | os.PathLike[str], disk: FaultyDisk) -> None:
        super().__init__(path, "wb")
        self._disk = disk

    def write(self, content: object) -> int:
        raw = bytes(content)  # type: ignore[call-overload]
        self._disk.reach("write", before_error=lambda: super(_File, self).write(raw[: len(raw) // 2]))
        return super().write(raw)


class ShortFile(io.FileIO):
    """Takes at most seven bytes at a time, as a disk or a network may."""

    def write(self, content: object) -> int:
        return super().write(bytes(content)[:7])  # type: ignore[call-overload]


def whole_files(folder: Path) -> dict[str, bytes]:
    """What stands below `folder` under its own name."""
    found = (path for path in folder.rglob("*") if path.is_file() and not is_leftover(path))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def is_leftover(path: Path) -> bool:
    """A file that only a writer at work has: a temporary one, a lock."""
    return TEMPORARY_MARK in path.name or path.name in (LOCK_NAME, MANIFEST_LOCK_NAME)


@dataclass(frozen=True, kw_only=True)
class Written:
    """An operation that writes below `folder`: how it begins anew, what to look at after one that stopped, what it ends with.

    `is_over` tells of one that wrote all it had to and need not be asked for again.
    """

    folder: Path
    begin: Callable[[], object]
    operate: Callable[[], object]
    look: Callable[[], object]
    result: Callable[[], object]
    is_over: Callable[[], bool] = lambda: False


def fail_each_call(kind: str, written: Written) -> int:
    """The operation with its first call of `kind` failing, then its second, until it ends untouched; returns how many failed.

    Each time what stood when the call failed still stands, nothing else does, and the operation goes on to the same result.
    """
    written.begin()
    written.operate()
    expected = written.result()
    for nth in itertools.count(1):
        disk = FaultyDisk(kind, nth, written.folder)
        written.begin()
        is_refused = _operates(written, disk)
        if disk.at_fault is None:
            assert (is_refused, written.result()) == (False, expected)
            return nth - 1
        if is_refused:  # what is kept for the next time only, as an answer in `cache/`, is done without
            assert whole_files(written.folder) == disk.at_fault
        assert [path for path in written.folder.rglob("*") if is_leftover(path)] == []
        written.look()
        if is_refused and not written.is_over():
            written.operate()
        assert written.result() == expected
    raise AssertionError


def _operates(written: Written, disk: FaultyDisk) -> bool:
    """Whether the operation was refused, with the disk's own words."""
    said = None
    with disk.mounted():
        try:
            written.operate()
        except StorageError as error:
            said = str(error)
    assert said is None or os.strerror(FAULTS[disk.kind]) in said
    return said is not None
