"""Allowance tables as YAML 1.2: the only reader and writer. Decimals go from text to Decimal and back, never through a float."""

import io
import os
import re
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from routing.core.allowance import TABLE_SCHEMA_VERSION, AllowanceTable, decimal_text, entries_hash, entry_faults
from routing.core.errors import DamagedDataError, InputError
from routing.core.placement import FILE_PREFIX, NAME_PATTERN, PLACEMENT, ROUND_ROBIN
from routing.store.check_digits import KEY, check_digits, edited_line
from routing.store.files import read_text, require_replaceable, write_bytes
from routing.store.records import decode_record
from routing.store.yaml_comments import carry_comments
from routing.store.yaml_nodes import Node, read_nodes

_WHAT = "# How far above the even share the busiest expert-parallel rank's rows may lie, by EP size and batch size."
_REVIEWED = "# A person reviews it; nobody edits it: content_hash shows a changed entry."
_MEASURED = "# Written by `routing fit` from measured runs."
_PUBLISHED = "# Written by `python -m pipelines.publish_table` from published figures (data/published/), claims of their authors."
MAX_BYTES = 16_000_000


def write_table(path: Path, table: AllowanceTable) -> None:
    """Writes `table` whole or not at all; what is written reads back equal."""
    write_bytes(path, table_text(table).encode())


def rewrite_table(path: Path, table: AllowanceTable) -> None:
    """Replaces the table in `path` and keeps every comment that a person wrote there, each beside what it stood beside.

    A comment of an entry or field that is gone stands above what held it. Without a file this is `write_table`.
    """
    if not path.is_file() or not path.stat().st_size:
        write_table(path, table)
        return
    ours = (_WHAT, _MEASURED, _PUBLISHED, _REVIEWED)
    text = carry_comments(_text_of(path), table_text(table), where=str(path), but=ours)
    require_replaceable(
        path,
        what="an allowance table",
        marks=tuple(f"\n{field.name}:".encode() for field in fields(AllowanceTable) if field.default is MISSING),
    )
    assert parse_table(text, where=str(path)) == table
    write_bytes(path, text.encode())


def table_text(table: AllowanceTable) -> str:
    """The file's text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        """A decimal's own digits; numbers on one line; a value that two entries share written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True  # the reader refuses aliases

        def represent_decimal(self, value: Decimal) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:float", decimal_text(value))

        def represent_str(self, value: str) -> Any:
            # A plain U+0085 would be read back as a line's end; between double quotes it is escaped.
            return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')

        def represent_sequence(self, tag: Any, sequence: Any, flow_style: Any = None) -> Any:
            return super().represent_sequence(tag, sequence, flow_style=_are_numbers(sequence))

        def represent_mapping(self, tag: Any, mapping: Any, flow_style: Any = None) -> Any:
            return super().represent_mapping(tag, mapping, flow_style=_are_numbers(list(mapping.values())))

    Representer.add_representer(Decimal, Representer.represent_decimal)
    Representer.add_representer(str, Representer.represent_str)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 4096
    body = _plain(table)
    if body["override"] is None:
        del body["override"]
    stream = io.StringIO()
    vouched = {key: body.pop(key) for key in ("content_hash", "override") if key in body}
    yaml.dump(body | {KEY: check_digits(body)} | vouched, stream)
    written_by = _PUBLISHED if any(entry.status == "published" for entry in table.entries) else _MEASURED
    return "\n".join((_WHAT, written_by, _REVIEWED, stream.getvalue()))


def read_table(path: str | os.PathLike[str]) -> AllowanceTable:
    """The table in `path`, if it keeps every rule that needs no statistics.

    InputError with the line for what is no table or contradicts itself; DamagedDataError for that in a file that a fit wrote,
    for entries that are not those which were written (unless the file names who answers for them) and for a newer schema;
    StorageError where reading fails.
    """
    try:
        return parse_table(_text_of(Path(path)), where=str(path))
    except InputError as error:
        if _was_written(Path(path)):
            raise DamagedDataError(f"{error}; a fit wrote this file, and not so: fit again, or put a copy back") from error
        raise


def parse_table(text: str, *, where: str) -> AllowanceTable:
    """The table in `text`, by the rules of `read_table`."""
    root = read_nodes(text, where=where)
    _require_version(root, where)
    digits = root.value.pop(KEY, None) if isinstance(root.value, dict) else None
    if digits is not None and not (isinstance(digits.value, list) and all(isinstance(one.value, str) for one in digits.value)):
        raise InputError(f"{where}:{digits.line}: {KEY} is no list of text")
    table: AllowanceTable = decode_record(AllowanceTable, root, where=where)
    _require_rules(table, root, digits, where)
    _require_unedited(table, root, digits, where)
    return table


def _was_written(path: Path) -> bool:
    """Whether a fit wrote this file, and nobody answers for it: it has our first line or last key, or nothing is left of it."""
    raw = path.read_bytes() if path.is_file() else b"-"
    is_ours = not raw or raw.startswith(_WHAT.encode()) or b"\ncontent_hash: " in raw
    return is_ours and len(raw) <= MAX_BYTES and b"\noverride:" not in raw


def _text_of(path: Path) -> str:
    return read_text(path, what="a table", max_bytes=MAX_BYTES, missing=f"fit one: routing fit RUN --out {path}")


def _require_version(root: Node, where: str) -> None:
    node = root.value.get("schema_version") if isinstance(root.value, dict) else None
    if node is not None and isinstance(node.value, int) and node.value > TABLE_SCHEMA_VERSION:
        raise DamagedDataError(
            f"{where}:{node.line}: schema_version {node.value} is newer than this program's {TABLE_SCHEMA_VERSION}; update it"
        )


def _require_rules(table: AllowanceTable, root: Node, digits: Node | None, where: str) -> None:
    def line(*names: str | int) -> str:
        node = root
        for name in names:
            node = node.value[name]
        return f"{where}:{node.line}"

    def edited(otherwise: Node) -> str:
        found = None if digits is None else edited_line(root, _plain(table), digits.plain())
        return f"{where}:{found or otherwise.line}"

    if table.schema_version != TABLE_SCHEMA_VERSION:
        raise InputError(
            f"{line('schema_version')}: schema_version {table.schema_version} is not {TABLE_SCHEMA_VERSION}; fit it again"
        )
    if not re.fullmatch(NAME_PATTERN, table.placement):
        known = f"{PLACEMENT}, {ROUND_ROBIN} or {FILE_PREFIX} and a hash"
        raise InputError(f"{line('placement')}: placement {table.placement[:80]!r} is none of {known}")
    eps = sorted({entry.ep for entry in table.entries})
    if table.placement.startswith(FILE_PREFIX) and len(eps) > 1:
        raise InputError(f"{line('placement')}: a placement in a file is of one EP size, the entries are of {eps}")
    try:
        shape = table.model.shape
    except InputError as error:
        raise InputError(f"{edited(root.value['model'])}: {error}") from error
    if shape.shape_hash != table.model.shape_hash:
        at = edited(root.value["model"].value["shape_hash"])
        raise DamagedDataError(f"{at}: the shape is not the one of shape_hash; fit the table again")
    if not table.entries:
        raise InputError(f"{line('entries')}: no entry")
    for index, field, fault in entry_faults(table.entries, shape):
        raise InputError(f"{line('entries', index, field)}: {fault}")
    if table.override is not None and not (table.override.reason.strip() and table.override.name.strip()):
        raise InputError(f"{line('override')}: an override gives a reason and a name")


def _require_unedited(table: AllowanceTable, root: Node, digits: Node | None, where: str) -> None:
    """DamagedDataError with the line of the first value that is not the one which was written."""
    if table.override is not None:
        return
    if digits is None:
        raise InputError(f"{where}: lacks {KEY}; fit the table again")
    written = digits.plain()
    body = _plain(table)
    if table.content_hash != entries_hash(table.model, table.placement, table.entries, table.generated):
        line = edited_line(root, body, written) or root.value["content_hash"].line
    elif written != (right := check_digits(body)):
        line = next((node.line for node, one in zip(digits.value, right, strict=False) if node.value != one), digits.line)
    else:
        return
    raise DamagedDataError(
        f"{where}:{line}: edited by hand (not what was written); fit again, or add override: {{reason: ..., name: ...}}"
    )


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | Decimal) for value in values)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
