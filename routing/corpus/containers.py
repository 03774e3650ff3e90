"""Where rows lie: JSON, JSON Lines, YAML, Parquet, Arrow, `.npy`, a saved `datasets` directory, plain text; told by content."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from routing.core.errors import InputError, StorageError
from routing.corpus.arrays import NPY_MAGIC, npy_rows
from routing.corpus.documents import FileFacts
from routing.corpus.strict_json import (
    BOM,
    BadLines,
    JsonFaultError,
    parse_json,
    read_json_file,
    read_json_lines,
    read_lines,
)
from routing.corpus.tables import arrow_rows, dataset_rows, is_saved_dataset, parquet_rows
from routing.corpus.whole_files import text_rows, yaml_rows

_HEAD_BYTES = 65_536
_HEAD_LINES = 20
# A text file is one where both sides speak at line starts; one of them alone is also a line of YAML.
_ASKING = re.compile(rb"^(?:user|human|system) ?:", re.IGNORECASE | re.MULTILINE)
_ANSWERING = re.compile(rb"^(?:assistant|agent|ai) ?:", re.IGNORECASE | re.MULTILINE)
# YAML is a list of ART's groups; nothing else of ours is written in it.
_YAML_LIST = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t\r]*\n|#[^\n]*\n|---[ \t\r]*\n)*- ")
_YAML_GROUPS = re.compile(rb"^[- ]*(?:trajectories|messages_and_choices) ?:", re.MULTILINE)
_COMPRESSED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """The rows of one file as (0-based row, value), read lazily, with what the file says about all of them.

    `kind`: json, yaml, parquet, arrow, npy, dataset or text.
    """

    kind: str
    rows: Iterator[tuple[int, object]]
    facts: FileFacts = field(default_factory=FileFacts)


def open_container(
    path: Path, bad_lines: BadLines, *, name: str, columns: Sequence[str], as_text: bool = False
) -> Container | None:
    """The container at `path`, or None where its content is none we know; `as_text` takes the file as one text document.

    Of Parquet, Arrow and datasets only `columns` are read.

    Raises InputError for what isn't there, is empty or can't be parsed, StorageError for what can't be read.
    """
    if _is_directory(path, name=name):
        return _table("dataset", dataset_rows(path, name=name, wanted=columns))
    head = _read_head(path, name=name)
    if as_text:
        return Container(kind="text", rows=text_rows(path, name=name), facts=FileFacts(whole_text=True))
    if head.startswith(b"PAR1"):
        return _table("parquet", parquet_rows(path, name=name, wanted=columns))
    if head.startswith((b"ARROW1\x00\x00", b"\xff\xff\xff\xff")):
        return _table("arrow", arrow_rows(path, is_file=head.startswith(b"ARROW1"), name=name, wanted=columns))
    if head.startswith(NPY_MAGIC):
        return Container(kind="npy", rows=npy_rows(path, name=name))
    start = head.removeprefix(BOM).lstrip(b" \t\r\n")[:1]
    if start == b"[" or (start == b"{" and not _holds_json_lines(path, name=name)):
        return _open_json(path, name=name)
    if start == b"{":
        return Container(kind="json", rows=read_json_lines(path, bad_lines, name=name))
    if _YAML_LIST.match(head) and _YAML_GROUPS.search(head):
        return Container(kind="yaml", rows=yaml_rows(path, name=name))
    if path.suffix.lower() == ".txt" or (_ASKING.search(head) and _ANSWERING.search(head)):
        return Container(kind="text", rows=text_rows(path, name=name), facts=FileFacts(whole_text=True))
    return None


def check_readable(path: Path, *, name: str) -> None:
    """Nothing, or the InputError or StorageError of a path that is missing, empty, of no readable kind or closed to us."""
    if not _is_directory(path, name=name):
        _read_head(path, name=name)
    elif not is_saved_dataset(path, name=name):
        raise InputError(f"{name}: a directory, but none that `datasets` saved; pass the files in it")


def _is_directory(path: Path, *, name: str) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None


def _read_head(path: Path, *, name: str) -> bytes:
    try:
        if not path.exists():
            raise InputError(f"{name}: no such file")
        if not path.is_file():
            raise InputError(f"{name}: not a regular file; write it to one first, it is read twice")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None
    if not head:
        raise InputError(f"{name}: the file is empty")
    if not head.removeprefix(BOM).strip():
        raise InputError(f"{name}: the file holds no rows, only blank space")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name}: UTF-16 text; convert it to UTF-8")
    for magic, kind in _COMPRESSED.items():
        if head.startswith(magic):
            raise InputError(f"{name}: {kind}-compressed; unpack it first")
    return head


def _holds_json_lines(path: Path, *, name: str) -> bool:
    """Whether the file that opens with a brace holds one object a line; a tau2 run file on a single line is no such file."""
    lines = read_lines(path, BadLines(skip=True), name=name)
    for index, (_, line) in enumerate(itertools.islice(lines, _HEAD_LINES)):
        if index == 0 and line == b"{":
            return False
        if not line.startswith(b"{"):
            continue
        try:
            value = parse_json(line)
        except JsonFaultError:
            continue
        return isinstance(value, dict) and not isinstance(value.get("simulations"), list)
    return False


def _table(kind: str, rows: Iterator[tuple[int, object]] | None) -> Container | None:
    return None if rows is None else Container(kind=kind, rows=rows, facts=FileFacts(columnar=True))


def _open_json(path: Path, *, name: str) -> Container:
    value = read_json_file(path, name=name)
    if isinstance(value, list):
        return Container(kind="json", rows=iter(enumerate(value)))
    if isinstance(value, dict) and isinstance(simulations := value.get("simulations"), list):
        header = {key: member for key, member in value.items() if key != "simulations"}
        return Container(kind="json", rows=iter(enumerate(simulations)), facts=FileFacts(header=header | {"simulations": None}))
    return Container(kind="json", rows=iter([(0, value)]))
