"""Fields of records that people and planners write: checked once, refused with the path that leads to them."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from routing.core.errors import InputError

MAX_ROWS = 10**9

FieldPath = tuple[str | int, ...]


class FieldError(InputError):
    """A field that can't be as it is; `path` leads to it from the record that refused it."""

    def __init__(self, path: FieldPath, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(f"{path_text(path)}: {what}")


def path_text(path: FieldPath) -> str:
    """`groups[0].attention_rows[1]`; nothing for the record itself."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".") or "the record"


def put(record: object, name: str, value: object) -> None:
    """Replaces a frozen record's field by its checked value, while the record is made."""
    object.__setattr__(record, name, value)


def whole(path: FieldPath, value: Any, *, low: int = 0, high: int = MAX_ROWS) -> int:
    """`value` as int; also from NumPy or torch integers."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise FieldError(path, f"{str(value)[:40]!r} is not a whole number")
    number = int(value)
    if not low <= number <= high:
        shown = str(number) if number.bit_length() < 100 else f"a number of {number.bit_length()} bits"
        raise FieldError(path, f"{shown} is {'below' if number < low else 'above'} {low if number < low else high}")
    return number


def imbalance(path: FieldPath, value: Any) -> Decimal:
    """`value` as an exact decimal of at least 1, which is even."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise FieldError(path, f"{str(value)[:40]!r} is not a decimal number (a float is none: write Decimal('1.08'))")
    share = Decimal(value)
    if not share.is_finite() or not 1 <= share <= 4096 or int(share.as_tuple().exponent) < -30:
        raise FieldError(path, f"{share:.6g} is no imbalance; 1.0 is even")
    return share


def boolean(record: object, name: str) -> None:
    """Refuses a field that is no bool."""
    if type(getattr(record, name)) is not bool:
        raise FieldError((name,), f"{str(getattr(record, name))[:40]!r} is neither true nor false")


def sequence(path: FieldPath, value: Any) -> tuple[Any, ...]:
    """`value` as a tuple; text is none."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise FieldError(path, f"{str(value)[:40]!r} is not a list")
    return tuple(value)
