"""Decoder shapes from disk: the bundled ones by name, any other from its `config.json`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from routing.core.config_json import decoder_shape
from routing.core.errors import InputError
from routing.core.layers import DecoderShape
from routing.store.files import read_json_object
from routing.store.packaged import packaged


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
            return decoder_shape(read_json_object(place, what="a config.json"), name=model, where=str(place))
    bare = model.rpartition("/")[2].lower()
    for bundled in bundled_models():
        if bare in bundled.names:
            return bundled.shape
    known = ", ".join(name for bundled in bundled_models() for name in bundled.names)
    raise InputError(f"model: {model[:80]!r} is no bundled shape ({known}) and no config.json")


def _bundled(path: Path) -> BundledModel:
    body = read_json_object(path, what="a config.json")
    names = (body["name"], *body["aliases"])
    return BundledModel(names=names, shape=decoder_shape(body["config"], name=body["name"], where=str(path)))
