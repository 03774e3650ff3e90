"""What a format is: how its rows are told and how one is read; and what its modules ask of values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from routing.corpus.documents import Conversation, Dialect, FileFacts, RawDocument, RefusedError, unchanged
from routing.corpus.strict_json import JsonFaultError, parse_json

Row = Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format of corpus rows; `name` is what --format takes and the manifest holds.

    `keys`: what a row is looked at through; of Parquet, Arrow and datasets no other column is read. `is_row`: whether a row has
    the format's shape. `read`: the trajectories in a row; RefusedError where it lacks what the format asks for.
    """

    name: str
    keys: tuple[str, ...]
    is_row: Callable[[Row, FileFacts], bool]
    read: Callable[[Row, FileFacts], Sequence[RawDocument]]


def json_text(value: object) -> object:
    """A list or object that a column holds as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except JsonFaultError:
            return value
    return value


def holds_objects(value: object) -> bool:
    """Whether it is a list, as itself or as JSON text, that is empty or begins with an object, as itself or as JSON text."""
    value = json_text(value)
    return isinstance(value, list) and all(isinstance(json_text(member), Mapping) for member in value[:1])


def required_list(row: Row, key: str) -> list[object]:
    """The list under `key` and its members, as themselves or as JSON text; RefusedError where there is none.

    `datasets` stores objects that differ from row to row as a list of JSON texts.
    """
    value = json_text(row.get(key))
    if not isinstance(value, list):
        raise RefusedError("shape", f"'{key}' is {kind(value)}, not a list")
    return [json_text(member) for member in value]


def chat(row: Row, facts: FileFacts, *, dialect: Dialect = unchanged) -> Conversation:
    """The messages of `row` with its tools; RefusedError where there are none."""
    tools = row.get("tools") or row.get("functions")
    return Conversation(messages=required_list(row, "messages"), tools=tools, columnar=facts.columnar, dialect=dialect)


def kind(value: object) -> str:
    """What a value is, in a word or two, without the value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "absent or null" if value is None else names.get(type(value), type(value).__name__)
