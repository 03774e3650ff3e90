"""YAML or JSON nodes to frozen records, strictly: every field known and of its kind, errors with line and field."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from routing.core.errors import InputError
from routing.core.fields import FieldError, FieldPath, path_text
from routing.store.yaml_nodes import Node

_WORDS = {
    int: "a whole number",
    bool: "true or false",
    Decimal: "a decimal number",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
}
_NO_SENTENCES: Mapping[str, str] = {}


def decode_record(kind: type[Any], root: Node, *, where: str, sentences: Mapping[str, str] = _NO_SENTENCES) -> Any:
    """`root` as the dataclass `kind`; `sentences` say more of fields that people might expect and that aren't there.

    InputError naming `where`, the line and the path of the field, also for what the records' own checks refuse.
    """
    return _Decoder(root, where, sentences).record(kind, root, ())


def field_error(root: Node, path: FieldPath, what: str, *, where: str) -> InputError:
    """What is wrong with the field at `path` of a record that was read from `root`, with its line."""
    return _Decoder(root, where, _NO_SENTENCES).error(path, what)


class _Decoder:
    def __init__(self, root: Node, where: str, sentences: Mapping[str, str]) -> None:
        self.root, self.where, self.sentences = root, where, sentences

    def record(self, kind: type[Any], node: Node, path: FieldPath) -> Any:
        if not isinstance(node.value, dict):
            raise self.error(path, f"{shown(node.value)} is not a mapping")
        hints = get_type_hints(kind)
        for key in node.value:
            if key not in hints:
                what = self.sentences.get(key, f"no such field; there are {', '.join(hints)}")
                raise self.error((*path, key[:40]), what, at=(*path, key))
        optional = {field.name for field in fields(kind) if field.default is not MISSING}
        for key in hints:
            if key not in node.value and key not in optional:
                raise self.error((*path, key), "is missing", at=path)
        values = {key: self.value(hints[key], item, (*path, key)) for key, item in node.value.items()}
        try:
            return kind(**values)
        except FieldError as error:
            raise self.error((*path, *error.path), error.what) from error

    def value(self, kind: Any, node: Node, path: FieldPath) -> Any:
        origin, arms = get_origin(kind), get_args(kind)
        if origin in (UnionType, Union):
            if node.value is None and NoneType in arms:
                return None
            some = [arm for arm in arms if arm is not NoneType]
            fitting = some if len(some) == 1 else [arm for arm in some if _takes(arm, node.value)]
            if not fitting:
                raise self.error(path, f"{shown(node.value)} is not {' or '.join(map(_wanted, some))}")
            return self.value(fitting[0], node, path)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            return self.record(kind, node, path)
        if origin is tuple and isinstance(node.value, list):
            return tuple(self.value(arms[0], item, (*path, place)) for place, item in enumerate(node.value))
        if origin is dict and isinstance(node.value, dict):
            return {key: self.value(arms[1], item, (*path, key)) for key, item in node.value.items()}
        if origin is Literal:
            if node.value not in arms or not isinstance(node.value, str):
                raise self.error(path, f"{shown(node.value)} is none of {', '.join(arms)}")
            return node.value
        if _takes(kind, node.value):
            return Decimal(node.value) if kind is Decimal else node.value
        raise self.error(path, f"{shown(node.value)} is not {_wanted(kind)}")

    def error(self, path: FieldPath, what: str, *, at: FieldPath | None = None) -> InputError:
        node = self.root
        for step in path if at is None else at:
            inner = node.value
            known = step in inner if isinstance(inner, dict) else isinstance(inner, list) and isinstance(step, int)
            if not known:
                break
            node = inner[step]
        return InputError(f"{self.where}:{node.line}: {path_text(path)}: {what}")


def _takes(kind: Any, value: Any) -> bool:
    """Whether a scalar is of this kind; a whole number may stand for a decimal."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    return type(value) is kind or (kind is Decimal and type(value) is int)


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return _WORDS[get_origin(kind) or kind]


def shown(value: Any) -> str:
    """A value as an error line shows it, cut."""
    return {dict: "a mapping", list: "a list", NoneType: "null"}.get(type(value), repr(str(value)[:40]))
