"""What a fitted table was made from, in a small file beside it, so that the same fit is not made twice."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from routing.core.errors import RoutingError
from routing.store.files import read_json_object, write_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class FitMark:
    """`made_from` is a sha256 over all that decides the fit, `content_hash` the table's, `warnings` what the fit said."""

    made_from: str
    content_hash: str
    warnings: tuple[str, ...]


def mark_of(table: Path) -> Path:
    """`allowances.yaml` has its mark in `allowances.yaml.fit.json`."""
    return table.with_name(f"{table.name}.fit.json")


def read_mark(table: Path) -> FitMark | None:
    """The mark beside `table`; None where there is none that can be read, since a fit too many is only slow."""
    try:
        body = read_json_object(mark_of(table), what="a fit's mark")
        mark = FitMark(made_from=body["made_from"], content_hash=body["content_hash"], warnings=tuple(body["warnings"]))
    except (RoutingError, KeyError, TypeError):
        return None
    return mark if all(isinstance(one, str) for one in (mark.made_from, mark.content_hash, *mark.warnings)) else None


def write_mark(table: Path, mark: FitMark) -> None:
    """Replaces the mark beside `table`, whole or not at all."""
    write_bytes(mark_of(table), (json.dumps(asdict(mark), indent=1) + "\n").encode())
