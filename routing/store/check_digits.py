"""Sixteen bits for each value of a table, so that an edit by hand is named by its line. What vouches is the content hash."""

import json
from binascii import crc_hqx
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from routing.core.allowance import decimal_text
from routing.store.yaml_nodes import Node

KEY = "check_digits"
_WIDTH = 4  # hex digits of one value
Path = tuple[str | int, ...]


def check_digits(body: dict[str, Any]) -> list[str]:
    """One text for all that is no entry, then one an entry, four hex digits a value in the file's order.

    `body` is the table as plain values. A CRC of 16 bits differs for any change within two neighbouring characters.
    """
    return ["".join(f"{_crc(path, text):0{_WIDTH}x}" for path, text in part) for part in _parts(body)]


def edited_line(root: Node, body: dict[str, Any], written: list[str]) -> int | None:
    """The line of the first value that is not the one `written` was taken over, None where there is none."""
    parts = _parts(body)
    for index, (part, digits) in enumerate(zip(parts, written, strict=False)):
        for place, (path, text) in enumerate(part):
            if digits[place * _WIDTH : (place + 1) * _WIDTH] != f"{_crc(path, text):0{_WIDTH}x}":
                return _line(root, path)
        if len(digits) != _WIDTH * len(part):
            return _line(root, ("entries", index - 1) if index else ())
    if len(parts) != len(written):
        return _line(root, ("entries", len(written) - 1) if 0 < len(written) < len(parts) else ("entries",))
    return None


def _parts(body: dict[str, Any]) -> list[list[tuple[Path, str]]]:
    around = {key: value for key, value in body.items() if key not in ("entries", "content_hash", "override", KEY)}
    entries = [list(_leaves(entry, ("entries", index))) for index, entry in enumerate(body["entries"])]
    return [list(_leaves(around, ())), *entries]


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path, decimal_text(value) if isinstance(value, Decimal) else json.dumps(value)


def _crc(path: Path, text: str) -> int:
    return crc_hqx(f"{path[-1]} {text}".encode(), 0)


def _line(root: Node, path: Path) -> int:
    node = root
    for name in path:
        if isinstance(node.value, dict) and name not in node.value:
            break  # taken out of the file: what held it
        node = node.value[name]
    return node.line
