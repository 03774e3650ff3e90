"""Allowance tables as YAML 1.2: the only reader and writer. Decimals go from text to Decimal and back, never through a float."""

import io
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from routing.core.allowance import TABLE_SCHEMA_VERSION, AllowanceTable, decimal_text, entries_hash, entry_faults
from routing.core.errors import DamagedDataError, InputError, StorageError
from routing.core.placement import PLACEMENT
from routing.store.files import write_bytes
from routing.store.yaml_nodes import Node, read_nodes

HEADER = """\
# How far above the even share the busiest expert-parallel rank's rows may lie, by EP size and batch size.
# Written by `routing fit` from measured runs. A person reviews it; nobody edits it: content_hash shows a changed entry.
"""
MAX_BYTES = 16_000_000


def write_table(path: Path, table: AllowanceTable) -> None:
    """Writes `table` whole or not at all; what is written reads back equal."""
    write_bytes(path, table_text(table).encode())


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

        def represent_sequence(self, tag: Any, sequence: Any, flow_style: Any = None) -> Any:
            return super().represent_sequence(tag, sequence, flow_style=_are_numbers(sequence))

        def represent_mapping(self, tag: Any, mapping: Any, flow_style: Any = None) -> Any:
            return super().represent_mapping(tag, mapping, flow_style=_are_numbers(list(mapping.values())))

    Representer.add_representer(Decimal, Representer.represent_decimal)
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 4096
    body = _plain(table)
    if body["override"] is None:
        del body["override"]
    stream = io.StringIO()
    yaml.dump(body, stream)
    return HEADER + stream.getvalue()


def read_table(path: Path) -> AllowanceTable:
    """The table in `path`, if it keeps every rule that needs no statistics.

    InputError with the line for what is no table or contradicts itself; DamagedDataError for entries that are not those
    which were written (unless the file names who answers for them) and for a newer schema; StorageError where reading fails.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; fit one: routing fit RUN --out {path}") from error
    except OSError as error:
        raise StorageError(f"{path}: not readable, {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: {len(raw)} bytes, a table has at most {MAX_BYTES}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error
    root = read_nodes(text, where=str(path))
    _require_version(root, str(path))
    table: AllowanceTable = _decode(AllowanceTable, root, "the table", str(path))
    _require_rules(table, root, str(path))
    return table


def _require_version(root: Node, where: str) -> None:
    node = root.value.get("schema_version") if isinstance(root.value, dict) else None
    if node is not None and isinstance(node.value, int) and node.value > TABLE_SCHEMA_VERSION:
        raise DamagedDataError(
            f"{where}:{node.line}: schema_version {node.value} is newer than this program's {TABLE_SCHEMA_VERSION}; update it"
        )


def _require_rules(table: AllowanceTable, root: Node, where: str) -> None:
    def line(*names: str | int) -> str:
        node = root
        for name in names:
            node = node.value[name]
        return f"{where}:{node.line}"

    if table.schema_version != TABLE_SCHEMA_VERSION:
        raise InputError(f"{line('schema_version')}: schema_version {table.schema_version} is not {TABLE_SCHEMA_VERSION}")
    if table.placement != PLACEMENT:
        raise InputError(f"{line('placement')}: placement {table.placement!r} is not {PLACEMENT!r}")
    try:
        shape = table.model.shape
    except InputError as error:
        raise InputError(f"{line('model')}: {error}") from error
    if shape.shape_hash != table.model.shape_hash:
        raise DamagedDataError(f"{line('model', 'shape_hash')}: not the hash of the model's shape; fit the table again")
    if not table.entries:
        raise InputError(f"{line('entries')}: no entry")
    for index, field, fault in entry_faults(table.entries, shape):
        raise InputError(f"{line('entries', index, field)}: {fault}")
    if table.override is not None and not (table.override.reason.strip() and table.override.name.strip()):
        raise InputError(f"{line('override')}: an override gives a reason and a name")
    if table.content_hash != entries_hash(table.model, table.placement, table.entries) and table.override is None:
        what = "entries were edited by hand (their hash is another)"
        raise DamagedDataError(f"{line('content_hash')}: {what}; fit again, or add override: {{reason: ..., name: ...}}")


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | Decimal) for value in values)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _decode(kind: Any, node: Node, name: str, where: str) -> Any:
    """`node` as `kind`, a dataclass or what its fields may be; InputError with the line."""
    value, origin, arms = node.value, get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        return _decode_record(kind, node, name, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arms[0], item, name, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _decode(arms[1], item, f"{name}.{key}", where) for key, item in value.items()}
    if origin is Literal and value in arms:
        return value
    if origin in (UnionType, Union) and (fitting := [arm for arm in arms if _takes(arm, value)]):
        return _decode(fitting[0], node, name, where)
    if _takes(kind, value):
        return Decimal(value) if kind is Decimal else value
    raise InputError(f"{where}:{node.line}: {name}: {_shown(value)} is not {_wanted(kind)}")


def _shown(value: Any) -> str:
    return {dict: "a mapping", list: "a list", NoneType: "null"}.get(type(value), repr(str(value)[:40]))


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (UnionType, Union):
        return " or ".join(_wanted(arm) for arm in get_args(kind))
    words = {
        int: "a whole number",
        Decimal: "a decimal number",
        str: "text",
        tuple: "a list",
        dict: "a mapping",
        NoneType: "null",
    }
    return words.get(get_origin(kind) or kind, "a mapping")


def _takes(kind: Any, value: Any) -> bool:
    """Whether a scalar or the outside of a collection is of this kind; a whole number may stand for a decimal."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if is_dataclass(kind) or get_origin(kind) is dict:
        return isinstance(value, dict)
    if kind is None or kind is NoneType:
        return value is None
    return type(value) is kind or (kind is Decimal and type(value) is int)


def _decode_record(kind: Any, node: Node, name: str, where: str) -> Any:
    hints = get_type_hints(kind)
    for key, item in node.value.items():
        if key not in hints:
            raise InputError(f"{where}:{item.line}: {name}: no field is named {key[:40]!r}")
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    for key in hints.keys() - node.value.keys() - optional:
        raise InputError(f"{where}:{node.line}: {name}: {key!r} is missing")
    return kind(**{key: _decode(hints[key], item, key, where) for key, item in node.value.items()})
