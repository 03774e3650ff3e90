"""An entry beside the same entry fitted again: every field in which they differ, by its path."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

from routing.core.allowance import decimal_text

_SHOWN_CHARACTERS = 40


def field_differences(committed: Any, again: Any, *, where: str = "") -> Iterator[str]:
    """`evidence.median 1.25 against 1.3` for every field of two records that is not the same in both."""
    if is_dataclass(committed) and type(committed) is type(again):
        for field in fields(committed):
            path = f"{where}.{field.name}" if where else field.name
            yield from field_differences(getattr(committed, field.name), getattr(again, field.name), where=path)
    elif isinstance(committed, tuple) and isinstance(again, tuple) and len(committed) == len(again):
        for place, (mine, theirs) in enumerate(zip(committed, again, strict=True)):
            yield from field_differences(mine, theirs, where=f"{where}[{place}]")
    elif isinstance(committed, dict) and isinstance(again, dict) and committed.keys() == again.keys():
        for key, mine in committed.items():
            yield from field_differences(mine, again[key], where=f"{where}.{key}")
    elif committed != again:
        yield f"{where} {_shown(committed)} against {_shown(again)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple | dict):
        return f"{len(value)} of them"
    text = decimal_text(value) if isinstance(value, Decimal) else type(value).__name__ if is_dataclass(value) else str(value)
    return text[:_SHOWN_CHARACTERS]
