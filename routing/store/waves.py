"""Waves as YAML 1.2 or JSON: the only reader and writer. What is written reads back equal, byte for byte."""

import json
import os
import re
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from routing.core.allowance import decimal_text
from routing.core.errors import InputError
from routing.core.wave import NOT_COVERED, Group, Wave
from routing.store.files import read_text
from routing.store.records import decode_record
from routing.store.yaml_nodes import read_nodes

MAX_BYTES = 4_000_000
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*")
_WORDS_OF_YAML = ("null", "true", "false")


def read_wave(path: str | os.PathLike[str]) -> Wave:
    """The wave in `path`; InputError with line and field for what is none, StorageError where reading fails."""
    missing = "lay one out: routing wave --lengths FILE --ep 2 --cp 2 --model NAME"
    return parse_wave(read_text(Path(path), what="a wave", max_bytes=MAX_BYTES, missing=missing), where=str(path))


def parse_wave(text: str, *, where: str) -> Wave:
    """The wave in `text`, YAML or JSON."""
    wave = decode_record(Wave, read_nodes(text, where=where), where=where, sentences=NOT_COVERED)
    assert isinstance(wave, Wave)
    return wave


def read_waves(path: Path) -> dict[str, Wave]:
    """Several waves by name, a mapping of names to waves; errors as of `read_wave`."""
    text = read_text(path, what="a file of waves", max_bytes=MAX_BYTES)
    root = read_nodes(text, where=str(path))
    if not isinstance(root.value, dict) or not all(isinstance(one.value, dict) for one in root.value.values()):
        raise InputError(f"{path}: no mapping of names to waves; each is a wave as `routing estimate` takes it, under its name")
    return {name: decode_record(Wave, node, where=str(path), sentences=NOT_COVERED) for name, node in root.value.items()}


def wave_text(wave: Wave, *, comment: str | None = None) -> str:
    """The file's text: a field a line, a group's fields too, what is inside them on that line."""
    lines = [f"# {comment}"] if comment else []
    for field in fields(wave):
        value = getattr(wave, field.name)
        if field.name != "groups":
            lines.append(f"{field.name}: {_flow(value)}")
    lines.append("groups:")
    for group in wave.groups:
        lines += _group_lines(group)
    return "\n".join(lines) + "\n"


def _group_lines(group: Group) -> list[str]:
    present = {field.name: getattr(group, field.name) for field in fields(group)}
    lines = []
    for name, value in present.items():
        if name == "attention_stages" and value is not None:
            lines.append(f"  {name}:")
            lines += [f"  - {_flow(stages)}" for stages in value]
        elif value is not None:
            lines.append(f"  {name}: {_flow(value)}")
    return [f"- {lines[0].strip()}", *lines[1:]]


def _flow(value: Any) -> str:
    """A value on one line; absent fields of a record inside are left out."""
    if is_dataclass(value):
        present = ((field.name, getattr(value, field.name)) for field in fields(value))
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in present if item is not None) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value not in _WORDS_OF_YAML else json.dumps(value, ensure_ascii=False)
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
