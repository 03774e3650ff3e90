"""Files that are read at once: one document of plain text, or YAML."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from routing.core.errors import InputError, StorageError
from routing.corpus.strict_json import BOM, is_encodable

MAX_TEXT_FILE_BYTES = 2**30
MAX_YAML_FILE_BYTES = 16 * 2**20  # the safe parser reads some 0.2 MB a second
MAX_YAML_DEPTH = 64  # the schema of a tool lies ten levels deep and may nest further


def text_rows(path: Path, *, name: str) -> Iterator[tuple[int, object]]:
    """The whole file as one row, `{"text": ...}`."""
    yield 0, {"text": _decoded(path, name=name, max_bytes=MAX_TEXT_FILE_BYTES, advice="split it, one trajectory a file")}


def yaml_rows(path: Path, *, name: str) -> Iterator[tuple[int, object]]:
    """The members of the list that a YAML file holds, or its one value; InputError with the line for what the store refuses.

    That is tags, anchors and aliases, directives, duplicate keys, several documents, deep nesting.
    """
    from routing.store.yaml_nodes import read_nodes

    text = _decoded(path, name=name, max_bytes=MAX_YAML_FILE_BYTES, advice="write it as JSON Lines, one group a line")
    value = _as_json_would(read_nodes(text, where=name, max_depth=MAX_YAML_DEPTH).plain(), name)
    yield from enumerate(value if isinstance(value, list) else [value])


def _as_json_would(value: object, name: str) -> object:
    """Decimals as floats, which chat templates can write; InputError for texts that strict JSON refuses."""
    if isinstance(value, dict):
        return {key: _as_json_would(member, name) for key, member in value.items()}
    if isinstance(value, list):
        return [_as_json_would(member, name) for member in value]
    if isinstance(value, str) and not is_encodable(value):
        raise InputError(f"{name}: a lone surrogate in a string, written as an escape; mend it")
    return float(value) if isinstance(value, Decimal) else value


def _decoded(path: Path, *, name: str, max_bytes: int, advice: str) -> str:
    try:
        if (num_bytes := path.stat().st_size) > max_bytes:
            raise InputError(f"{name}: one document of {num_bytes:,} bytes, more than {max_bytes:,}; {advice}")
        raw = path.read_bytes().removeprefix(BOM)
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file") from None
    if "\x00" in text:
        raise InputError(f"{name}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: NUL in a text file")
    return text
