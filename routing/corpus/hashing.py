"""What a corpus file or directory holds, as a hash, and whether it is still the same."""

import hashlib
from pathlib import Path

from routing.core.errors import StorageError
from routing.store.files import sha256_of


def hash_path(path: Path, *, name: str) -> tuple[str, int]:
    """(sha256 hex, bytes) of a file; of a directory, over its sorted relative names and file hashes."""
    try:
        if path.is_dir():
            members = sorted(member for member in path.rglob("*") if member.is_file())
            lines = "".join(f"{sha256_of(member)}  {member.relative_to(path).as_posix()}\n" for member in members)
            num_bytes = sum(member.stat().st_size for member in members)
            return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest(), num_bytes
        return sha256_of(path), path.stat().st_size
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None


def state_of(path: Path, *, name: str) -> tuple[tuple[str, int, int, int], ...]:
    """(name, inode, bytes, ns of the last change) of a file, or of every file in a directory; another once one is written."""
    try:
        members = sorted(member for member in path.rglob("*") if member.is_file()) if path.is_dir() else [path]
        stats = [(str(member), member.stat()) for member in members]
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None
    return tuple((member, stat.st_ino, stat.st_size, stat.st_mtime_ns) for member, stat in stats)
