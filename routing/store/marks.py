"""What a run or a fitted table was made from, in a small file beside it, so that the same work is not done twice."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from routing.core.errors import RoutingError
from routing.store.files import read_json_object, write_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """`made_from` is a sha256 over all that decides what was made, `content_hash` that of the counts or the table itself.

    `warnings` are what was said when it was made.
    """

    made_from: str
    content_hash: str
    warnings: tuple[str, ...] = ()


def mark_of(made: Path) -> Path:
    """`runs/one` has its mark in `runs/one.made.json`."""
    return made.with_name(f"{made.name}.made.json")


def read_mark(made: Path) -> Mark | None:
    """The mark beside `made`; None where there is none that can be read, since what is done once too often is only slow."""
    try:
        body = read_json_object(mark_of(made), what="a mark")
        mark = Mark(made_from=body["made_from"], content_hash=body["content_hash"], warnings=tuple(body["warnings"]))
    except (RoutingError, KeyError, TypeError):
        return None
    return mark if all(isinstance(one, str) for one in (mark.made_from, mark.content_hash, *mark.warnings)) else None


def write_mark(made: Path, mark: Mark) -> None:
    """Replaces the mark beside `made`, whole or not at all."""
    write_bytes(mark_of(made), (json.dumps(asdict(mark), indent=1) + "\n").encode())
