"""YAML 1.2 to values that know their line: plain data only, decimals exact, nothing that a reader would not expect.

Refused with the line: duplicate keys, tags, anchors and aliases, directives, several documents, deep nesting, lone surrogates.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from routing.core.errors import InputError

MAX_DEPTH = 16
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,30}")
_NEXT_LINE = "\x85"
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the line it starts on, counted from 1: a scalar, a list of nodes, or a dictionary of nodes by text key.

    What a key names starts on the line of the key.
    """

    line: int
    value: Any

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return [item.plain() for item in self.value] if isinstance(self.value, list) else self.value


def read_nodes(text: str, *, where: str, max_depth: int = MAX_DEPTH) -> Node:
    """The one document in `text`; InputError naming `where` and the line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if _NEXT_LINE in text:  # in a string it would be read as a space
        line = text.count("\n", 0, text.index(_NEXT_LINE)) + 1
        raise InputError(f"{where}:{line}: U+0085, an end of line to YAML 1.1 alone; write \\x85 between double quotes")
    try:
        events = _Events(YAML(typ="safe", pure=True).parse(text), where, max_depth)
        events.expect_document()
        root = _node(events, events.take(), depth=0)
        events.expect_end()
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{where}:{line}: not YAML, {' '.join(str(error.problem).split())}") from error
    except YAMLError as error:
        raise InputError(f"{where}: not YAML, {' '.join(str(error).split())[:120]}") from error
    return root


class _Events:
    """The parser's events one by one, those refused that plain data never needs."""

    def __init__(self, events: Iterator[Any], where: str, max_depth: int) -> None:
        self._events = events
        self.where, self.max_depth = where, max_depth

    def take(self) -> Any:
        event = next(self._events)
        line = event.start_mark.line + 1
        if getattr(event, "anchor", None) is not None:
            raise InputError(f"{self.where}:{line}: anchors and aliases (&{event.anchor}) are refused")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"{self.where}:{line}: tags ({str(event.tag)[:80]}) are refused")
        return event

    def expect_document(self) -> None:
        self.take()
        event = self.take()
        if type(event).__name__ != "DocumentStartEvent":
            raise InputError(f"{self.where}:1: an empty file")
        if event.version or event.tags:
            raise InputError(f"{self.where}:{event.start_mark.line + 1}: directives are refused")

    def expect_end(self) -> None:
        self.take()
        event = self.take()
        if type(event).__name__ != "StreamEndEvent":
            raise InputError(f"{self.where}:{event.start_mark.line + 1}: a second document")


def _node(events: _Events, event: Any, *, depth: int) -> Node:
    line = event.start_mark.line + 1
    if depth > events.max_depth:
        raise InputError(f"{events.where}:{line}: nested deeper than {events.max_depth}")
    match type(event).__name__:
        case "MappingStartEvent":
            return Node(line, _mapping(events, depth))
        case "SequenceStartEvent":
            items = []
            while type(item := events.take()).__name__ != "SequenceEndEvent":
                items.append(_node(events, item, depth=depth + 1))
            return Node(line, items)
        case _:
            text = _text(events, event)
            return Node(line, _scalar(text) if event.implicit[0] else text)


def _mapping(events: _Events, depth: int) -> dict[str, Node]:
    found: dict[str, Node] = {}
    while type(event := events.take()).__name__ != "MappingEndEvent":
        line = event.start_mark.line + 1
        if type(event).__name__ != "ScalarEvent":
            raise InputError(f"{events.where}:{line}: a key is a word")
        key = _text(events, event)
        if key in found:
            raise InputError(f"{events.where}:{line}: key {key[:40]!r} is there twice")
        found[key] = Node(line, _node(events, events.take(), depth=depth + 1).value)  # its key's line: errors name keys
    return found


def _text(events: _Events, event: Any) -> str:
    """A scalar as written, the two halves of a character that JSON escapes (`\\ud83d\\ude00`) joined."""
    try:
        text: str = event.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise InputError(f"{events.where}:{event.start_mark.line + 1}: a lone surrogate in a string") from error
    return text


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return Decimal(text) if _DECIMAL.fullmatch(text) else text
