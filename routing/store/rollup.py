"""What was worked out of a finished run once: `cache/` in its folder, JSON files that nothing else depends on.

    runs/NAME/cache/imbalance-STAMP-QUESTION.json    an answer, valid for one manifest, one program and one question
    runs/NAME/cache/decoded-STAMP-....json           every part of this manifest was decoded whole

A file carries the sha256 of its body and what it was made of. One that is cut, altered, of other counts or of another program is
as good as none and is replaced; so is a folder that can't be written. It is no part of the run: no hash covers it, and it may be
deleted at any time.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from routing.core.errors import RoutingError
from routing.store.files import read_json_object, remove_temporaries, write_bytes
from routing.store.manifest import Manifest, encode

CACHE_NAME = "cache"
MAX_FILES = 256  # of one kind; the oldest go
_OWN_FILE = re.compile(r"[a-z]+-[0-9a-f]{16}-[0-9a-f]{16}\.json")
_DECODED = "decoded"


def read_rollup(folder: Path, kind: str, *, made_from: str, question: Mapping[str, Any]) -> Any | None:
    """What was kept for this question; None where nothing that can be trusted was."""
    path = _path(folder, kind, made_from, question)
    try:
        if path.is_symlink() or path.parent.is_symlink():  # a run holds its own files
            return None
        body = read_json_object(path, what="a roll-up")
        if body["sha256"] != _hash(body["kept"]) or body["kept"]["of"] != [made_from, dict(question)]:
            return None
        return body["kept"]["value"]
    except (RoutingError, KeyError, TypeError):
        return None


def keep_rollup(folder: Path, kind: str, *, made_from: str, question: Mapping[str, Any], value: Any) -> None:
    """Keeps `value`, plain JSON, and drops what this kind kept of other counts or programs; does nothing where it can't write."""
    path = _path(folder, kind, made_from, question)
    kept = {"of": [made_from, dict(question)], "value": value}
    if path.is_symlink() or path.parent.is_symlink():
        return
    with contextlib.suppress(RoutingError, OSError):
        write_bytes(path, (json.dumps({"sha256": _hash(kept), "kept": kept}, indent=1) + "\n").encode())
        remove_temporaries(path.parent, of=lambda name: _OWN_FILE.fullmatch(name) is not None)
        _tidy(path)


def is_known_decoded(folder: Path, manifest: Manifest) -> bool:
    """Whether every part that this manifest names by its sha256 was once decoded whole; the same bytes decode again."""
    return read_rollup(folder, _DECODED, made_from=manifest_hash(manifest), question={}) is True


def keep_decoded(folder: Path, manifest: Manifest) -> None:
    """Spares whoever opens the run next to decode all of it."""
    keep_rollup(folder, _DECODED, made_from=manifest_hash(manifest), question={}, value=True)


def manifest_hash(manifest: Manifest) -> str:
    """sha256 over all that the manifest says, the hash of every part included."""
    return hashlib.sha256(encode(manifest)).hexdigest()


def _path(folder: Path, kind: str, made_from: str, question: Mapping[str, Any]) -> Path:
    return folder / CACHE_NAME / f"{kind}-{made_from[:16]}-{_hash(dict(question))[:16]}.json"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _tidy(path: Path) -> None:
    """Deletes what has another stamp than `path`, and the oldest beyond MAX_FILES."""
    kind, stamp, _ = path.name.split("-")
    mine = [one for one in path.parent.iterdir() if _OWN_FILE.fullmatch(one.name) and one.name.startswith(f"{kind}-")]
    current = [one for one in mine if one.name.startswith(f"{kind}-{stamp}-")]
    newest = set(sorted(current, key=lambda one: one.stat().st_mtime_ns, reverse=True)[:MAX_FILES])
    for one in mine:
        if one not in newest:
            one.unlink(missing_ok=True)
