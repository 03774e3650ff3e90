"""Comments that people wrote into a YAML file, carried over to its next version: none is lost, each stays with its field."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from routing.store.yaml_nodes import Node, read_nodes

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Comment:
    """`text` from its `#` to the end of `line`, counted from 1; `is_beside` where something stands before it."""

    line: int
    text: str
    is_beside: bool


def carry_comments(old: str, new: str, *, where: str, but: tuple[str, ...]) -> str:
    """`new`, a document without a person's comments, with those of `old`; `where` names the old file in errors.

    A comment stands above or beside the field or list item that it stood above or beside (entries go by `ep`, `batch_tokens`,
    `layer`, other items by place); where that is gone, above what held it. Comments in `but` are left out.
    """
    places = _outermost(read_nodes(old, where=where))
    starts = sorted(places)
    targets = {path: node.line for path, node in _walk(read_nodes(new, where=where), ())}
    lines = new.rstrip("\n").split("\n")
    above: dict[int, list[str]] = {}
    for comment in _comments(old):
        if comment.text in but:
            continue
        at = bisect_right(starts, comment.line) - 1 if comment.is_beside else bisect_left(starts, comment.line)
        if at == len(starts):
            above.setdefault(len(lines) + 1, []).append(comment.text)
            continue
        path = places[starts[at]]
        kept = next(path[:length] for length in range(len(path), -1, -1) if path[:length] in targets)
        if comment.is_beside and kept == path:
            lines[targets[kept] - 1] += f"  {comment.text}"
        else:
            above.setdefault(targets[kept], []).append(comment.text)
    return "".join(f"{line}\n" for line in _woven(lines, above))


def _woven(lines: list[str], above: dict[int, list[str]]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        indent = " " * (len(line) - len(line.lstrip(" ")))
        yield from (indent + text for text in above.get(number, ()))
        yield line
    yield from above.get(len(lines) + 1, ())


def _outermost(root: Node) -> dict[int, Path]:
    """The path of the outermost field or list item that starts on each line."""
    found: dict[int, Path] = {}
    for path, node in _walk(root, ()):
        if path:
            found.setdefault(node.line, path)
    return found


def _walk(node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    yield path, node
    if isinstance(node.value, dict):
        for key, item in node.value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(node.value, list):
        for place, item in enumerate(node.value):
            yield from _walk(item, (*path, _identity(item, place)))


def _identity(item: Node, place: int) -> Any:
    """What stays the same of a list's item when others are added before it."""
    names = ("ep", "batch_tokens", "layer")
    if isinstance(item.value, dict) and all(name in item.value for name in names):
        return tuple(item.value[name].value for name in names)
    return place


def _comments(text: str) -> Iterator[_Comment]:
    """Every comment: what no token covers is space or comment."""
    from ruamel.yaml import YAML

    covered = 0
    for token in YAML(typ="safe", pure=True).scan(text):
        start, end = token.start_mark.index, token.end_mark.index
        if start > covered:
            yield from _in_gap(text, covered, start)
        covered = max(covered, end)
    yield from _in_gap(text, covered, len(text))


def _in_gap(text: str, start: int, end: int) -> Iterator[_Comment]:
    at = text.find("#", start, end)
    while at >= 0:
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        before = text[text.rfind("\n", 0, at) + 1 : at]
        yield _Comment(text.count("\n", 0, at) + 1, text[at:stop].rstrip(), bool(before.strip()))
        at = text.find("#", stop, end)
