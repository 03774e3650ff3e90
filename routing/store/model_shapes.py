"""Decoder shapes from disk: the bundled ones by name, any other from its `config.json`."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from routing.core.config_json import decoder_shape
from routing.core.errors import InputError, StorageError
from routing.core.layers import DecoderShape
from routing.store.packaged import packaged

MAX_BYTES = 16_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledModel:
    """A shape that ships, and the names that it goes by, lower case."""

    names: tuple[str, ...]
    shape: DecoderShape


@cache
def bundled_models() -> tuple[BundledModel, ...]:
    """Every shape under `models/` of the package's data, by file name."""
    return tuple(_bundled(path) for path in sorted(packaged("models").glob("*.json")))


def find_shape(model: str) -> DecoderShape:
    """The shape of a bundled name (`qwen3.6-35b-a3b`, also as `Qwen/Qwen3.6-35B-A3B`), a config.json, or the folder of one."""
    for place in (Path(model), Path(model) / "config.json"):
        if place.is_file():
            return decoder_shape(_read_object(place), name=model, where=str(place))
    bare = model.rpartition("/")[2].lower()
    for bundled in bundled_models():
        if bare in bundled.names:
            return bundled.shape
    known = ", ".join(name for bundled in bundled_models() for name in bundled.names)
    raise InputError(f"model: {model[:80]!r} is no bundled shape ({known}) and no config.json")


def _bundled(path: Path) -> BundledModel:
    body = _read_object(path)
    names = (body["name"], *body["aliases"])
    return BundledModel(names=names, shape=decoder_shape(body["config"], name=body["name"], where=str(path)))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: {len(raw)} bytes, a config.json has at most {MAX_BYTES}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON, {' '.join(str(error).split())[:120]}") from error
    if not isinstance(body, dict):
        raise InputError(f"{path}: no JSON object")
    return body
