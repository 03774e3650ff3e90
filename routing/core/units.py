"""Sizes as people write them, and bytes as people read them."""

import re
from decimal import Decimal, InvalidOperation

from routing.core.errors import InputError

BYTES_PER_GB = 10**9
MAX_SIZE = 10**15  # far above any corpus, far below what 64 bits hold
_MULTIPLES: dict[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE = re.compile(r"(\d+)(?:\.(\d+))?([kmg]?)", re.IGNORECASE | re.ASCII)


def parse_size(text: str, *, name: str) -> int:
    """A positive count from `200k`, `3.5M` or `131072`; k, M and G are powers of 1,000.

    `name` is the flag or field that held it, for the message. Raises InputError for anything that isn't a whole positive number.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > 32:
        raise InputError(f"{name}: {text[:40]!r} is no size; write a whole number, or 200k, 3.5M")
    whole, fraction, suffix = match.group(1), match.group(2) or "", match.group(3).lower()
    scaled = int(whole + fraction) * _MULTIPLES[suffix]
    count, rest = divmod(scaled, int(10 ** len(fraction)))
    if rest or count < 1:
        raise InputError(f"{name}: {text!r} is not a whole positive number")
    if count > MAX_SIZE:
        raise InputError(f"{name}: {text!r} is above {MAX_SIZE}")
    return count


def parse_size_list(text: str, *, name: str) -> tuple[int, ...]:
    """Distinct sizes in the order given, from `200k,20k,2k`."""
    sizes = tuple(parse_size(part, name=name) for part in text.split(","))
    if len(set(sizes)) != len(sizes):
        raise InputError(f"{name}: {text!r} names a size twice")
    return sizes


def parse_number(text: str, *, name: str, of: str, low: str, high: str) -> Decimal:
    """A number from `low` to `high`, exact; `of` is what it counts, for the message.

    `name` is the flag that held it. Raises InputError for anything else: text, NaN, what is infinite or out of range.
    """
    try:
        number = Decimal(text) if len(text) <= 32 else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not Decimal(low) <= number <= Decimal(high):
        raise InputError(f"{name}: {text[:40]!r} is no number of {of} from {low} to {high}")
    return number


def format_gb(num_bytes: int) -> str:
    """Bytes as GB (1e9 bytes) with two decimals, for tables only."""
    return f"{num_bytes / BYTES_PER_GB:.2f} GB"


def format_size(count: int) -> str:
    """The short form that `parse_size` reads back to the same count: 200000 is `200k`, 131072 stays `131072`."""
    for suffix, multiple in (("M", 10**6), ("k", 10**3)):
        if count >= multiple and count % (multiple // 10) == 0:
            return f"{count / multiple:g}{suffix}"
    return str(count)
