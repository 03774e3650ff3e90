"""`manifest.json`: what a run is, whence it came, and the sha256 of every part that belongs to it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from routing.core.errors import DamagedDataError, InputError
from routing.core.shapes import ModelShape
from routing.store.settings import Recording, Settings

SCHEMA_VERSION = 1
MAX_NUMBER = 2**53  # of counts, bytes and seconds; above it a float would round
_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRecord:
    """The model that was run; `revision` is a commit for a hub id and the weights' hash for a folder."""

    name: str
    revision: str
    architecture: str
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    template_sha256: str | None
    adapter_sha256: str | None = None  # of an adapter's weights and configuration; `weights_sha256` is then of base and adapter


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One corpus file; rows = kept + refused + not_taken."""

    name: str
    format: str
    sha256: str
    num_bytes: int
    rows: int
    kept: int
    refused: int
    not_taken: int
    bad_lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalRecord:
    """A trajectory that was read and not kept."""

    source_file: str
    source_row: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusRecord:
    """What was read; `corpus_hash` is over the trajectory hashes in order, with their units and strata, and the segment cut."""

    corpus_hash: str
    files: tuple[FileRecord, ...]
    refusals: tuple[RefusalRecord, ...]
    normalised: dict[str, int]
    tokens_logical: int
    tokens_packed: int
    num_trajectories: int
    num_segments: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One Parquet file of the run."""

    name: str
    table: str
    num_rows: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Everything that a later reader needs to trust the counts. Times are UTC, ISO 8601."""

    schema_version: int
    label: str
    state: str  # "measuring", or "importing", until every planned part is in, then "finished"
    policy: PolicyRecord
    shape: ModelShape
    corpus: CorpusRecord
    settings: Settings
    versions: dict[str, str]
    tool_commit: str | None
    tool_dirty: bool | None
    command: tuple[str, ...]
    started_at: str
    finished_at: str | None
    elapsed_s: float
    planned_load_parts: int
    planned_tokens: int  # to compute, as `settings.walk` says; before it is settled of whole trajectories
    halvings: int  # how often out-of-memory halved a batch; ids may flip at ties where it did
    parts: tuple[Part, ...]
    content_hash: str | None
    recording: Recording | None = None  # null where the loads were measured by forward passes

    @property
    def origin(self) -> str:
        """`measured` by forward passes of this program, or `recorded` by another engine and imported."""
        return "measured" if self.recording is None else "recorded"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRecord:
    """One part of loads that a worker committed, until the manifest names it; `made_for` is the run's `identity_hash`."""

    schema_version: int
    part: Part
    made_for: str
    elapsed_s: float
    halvings: int


def identity(manifest: Manifest) -> dict[str, Any]:
    """What a run goes on with only unchanged, by the words that a refusal names it with."""
    settings = ("segment_tokens", "max_tokens", "device", "dtype", "tokens_per_part")
    found = {name: getattr(manifest.settings, name) for name in settings}
    policy = {f"policy {name}": value for name, value in asdict(manifest.policy).items() if name != "name"}
    return {**found, **policy, "corpus": manifest.corpus.corpus_hash}


def identity_hash(manifest: Manifest) -> str:
    """sha256 over `identity`: what a worker measured belongs to a run of the same."""
    return _self_hash(identity(manifest))


def encode(record: Manifest | PartRecord) -> bytes:
    """The file's bytes: JSON with a hash of itself, so that an altered digit is seen."""
    body = asdict(record)
    return (json.dumps({**body, "manifest_sha256": _self_hash(body)}, indent=1) + "\n").encode()


def decode(raw: bytes, *, where: str) -> Manifest:
    """The manifest in `raw`, or DamagedDataError naming `where` and the field."""
    return _decode_sealed(Manifest, raw, where)


def decode_part_record(raw: bytes, *, where: str) -> PartRecord:
    """The worker's record in `raw`; the errors of `decode`."""
    return _decode_sealed(PartRecord, raw, where)


def _decode_sealed(kind: type[_Record], raw: bytes, where: str) -> _Record:
    try:
        body = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_number)
        json.dumps(body, ensure_ascii=False).encode()  # lone surrogates, which nothing could print
    except (ValueError, RecursionError) as error:
        raise DamagedDataError(f"{where}: not the JSON of a run, {str(error)[:120]}") from error
    if not isinstance(body, dict):
        raise DamagedDataError(f"{where}: not the JSON object of a run")
    version = body.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DamagedDataError(f"{where}: schema_version {version!r:.20}, this program reads {SCHEMA_VERSION}")
    stored_hash = body.pop("manifest_sha256", None)
    record = _decode_record(kind, body, where)
    if (odd := next((number for number in _numbers(body) if not 0 <= number <= MAX_NUMBER), None)) is not None:
        raise DamagedDataError(f"{where}: {odd!r:.40} is no count, size or time of a run")
    if stored_hash != _self_hash(body):
        raise DamagedDataError(f"{where}: altered after it was written (its own sha256 does not match)")
    return record


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def _self_hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = get_origin(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_record(kind, value, where)
    if origin is UnionType:
        if value is None and NoneType in get_args(kind):
            return None
        return _decode(next(arm for arm in get_args(kind) if arm is not NoneType), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(get_args(kind)[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _decode(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is None and (type(value) is kind or (kind is float and type(value) is int)):
        return value
    raise DamagedDataError(f"{where}: {str(value)[:40]!r} is not of the kind {getattr(kind, '__name__', kind)}")


def _decode_record(kind: type[_Record], value: Any, where: str) -> _Record:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    # A field with a default came later than the format; manifests from before lack it.
    needed = {field.name for field in fields(kind) if field.default is MISSING}  # type: ignore[arg-type]
    if not isinstance(value, dict) or not needed <= set(value) <= names:
        odd = sorted((needed - set(value)) | (set(value) - names)) if isinstance(value, dict) else [type(value).__name__]
        raise DamagedDataError(f"{where}: missing or unknown fields {odd[:6]}")
    try:
        return kind(**{name: _decode(hints[name], value[name], f"{where}: {name}") for name in value})
    except InputError as error:
        raise DamagedDataError(f"{where}: {error}") from error
