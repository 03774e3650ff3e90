"""Files that are read at once: one document of plain text, or YAML."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from routing.core.errors import InputError, StorageError
from routing.corpus.strict_json import BOM

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
    value = _with_floats(read_nodes(text, where=name, max_depth=MAX_YAML_DEPTH).plain())
    yield from enumerate(value if isinstance(value, list) else [value])


def _with_floats(value: object) -> object:
    """Decimals, which no chat template can write as JSON, as floats."""
    if isinstance(value, dict):
        return {key: _with_floats(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_floats(member) for member in value]
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
