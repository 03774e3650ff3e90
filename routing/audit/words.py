"""Numbers and lists as the page writes them; what is missing is a dash."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from routing.core.allowance import decimal_text
from routing.core.units import BYTES_PER_GB, format_size

DASH = "\u2013"


def ratio(value: float | Decimal | None, digits: int = 4) -> str:
    """An imbalance, 1.0 is even."""
    return DASH if value is None else f"{float(value):.{digits}f}"


def exact(value: Decimal | None) -> str:
    """A decimal as the table writes it."""
    return DASH if value is None else decimal_text(value)


def count(value: int | None) -> str:
    """A whole number with thousands parted."""
    return DASH if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """A batch size, `200k` for 200,000 tokens."""
    return DASH if value is None else format_size(value)


def gigabytes(num_bytes: int, digits: int = 3) -> str:
    """GB are 1e9 bytes; small files keep three digits that say something."""
    return f"{num_bytes / BYTES_PER_GB:.{digits}g} GB"


def percent(fraction: float) -> str:
    """A difference in percent with its sign, `+18.2%`."""
    return f"{100 * fraction:+.1f}%"


def signed(value: float | Decimal | None, digits: int = 4) -> str:
    """A difference of ratios with its sign."""
    return DASH if value is None else f"{float(value):+.{digits}f}"


def dash(value: object) -> str:
    """Text, or a dash for nothing."""
    return DASH if value is None or value == "" else str(value)


def listed(items: Iterable[object]) -> str:
    """`2, 4 and 8`."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def number_of(value: int, one: str, several: str | None = None) -> str:
    """`1 batch`, `2,400 batches`."""
    return f"{value:,} {one if value == 1 else several or one + 's'}"


def binding(binds: str) -> str:
    """What an entry's evidence says made the allowance as large as it is."""
    if binds.startswith("ep="):
        return f"the allowance at EP {binds.removeprefix('ep=')}"
    if binds.startswith("batch_tokens="):
        return f"the allowance at batches of {binds.removeprefix('batch_tokens=')} tokens"
    if binds.startswith("stratum "):
        return f"resampled batches of the source {binds.removeprefix('stratum ')}"
    words = {
        "core": "observed worst with headroom",
        "floor": "a floor from outside",
        "ceiling": "the proven ceiling",
        "observed": "the largest imbalance seen",
        "resampled": "resampled batches of all strata",
    }
    return words.get(binds, binds)


def distinct_names(names: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A name for each (label, run): the label, with the run where labels repeat, with its place where both do."""
    labels = [label for label, _ in names]
    found: list[str] = []
    for place, (label, run) in enumerate(names):
        name = label if labels.count(label) == 1 else f"{label} ({run})"
        found.append(f"{name}, run {place + 1} of the command" if names.count((label, run)) > 1 else name)
    return tuple(found)
