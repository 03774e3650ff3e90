"""Numbers and lists as the page writes them; what is missing is a dash."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from routing.core.allowance import Entry, TableModel, decimal_text
from routing.core.units import BYTES_PER_GB, format_size

DASH = "\u2013"
MOST_NAMED = 3  # runs or files in one sentence


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


def quoted(name: str) -> str:
    """A run's label inside a sentence, where a comma of its own would break it."""
    return f"'{name}'"


def beside(value: float | Decimal, allowance: Decimal) -> str:
    """An imbalance with two digits, with more where two would not show on which side of the allowance it is."""
    texts = (f"{value:.{digits}f}" for digits in range(2, 7))
    return next((one for one in texts if (Decimal(one) > allowance) == (value > allowance)), f"{value:.9f}")


def audit_title(model: TableModel, runs: Sequence[str]) -> str:
    """`'trained' and 'untrained', 64 experts, top-8, 8 MoE layers`: up to three runs, since many a model is called `policy`."""
    name = listed(map(quoted, runs)) if 0 < len(runs) <= MOST_NAMED else model.name
    return f"{name}, {model.num_experts} experts, top-{model.top_k}, {number_of(len(model.moe_layers), 'MoE layer')}"


def place(entry: Entry) -> str:
    """`EP 8 at 2k tokens`, and the layer of an entry of one."""
    words = f"EP {entry.ep} at {size(entry.batch_tokens)} tokens"
    return words if entry.layer == "all" else f"{words}, layer {entry.layer}"


def places(entries: Sequence[Entry]) -> str:
    """`EP 4 and EP 8 with 2k tokens`; batch sizes of the same EP sizes are named together."""
    sizes: dict[tuple[int, ...], list[str]] = {}
    for batch_tokens in dict.fromkeys(entry.batch_tokens for entry in entries):
        eps = dict.fromkeys(entry.ep for entry in entries if entry.batch_tokens == batch_tokens)
        sizes.setdefault(tuple(eps), []).append(size(batch_tokens))
    return listed(f"{listed(f'EP {ep}' for ep in eps)} with {listed(found)} tokens" for eps, found in sizes.items())


def exceeding(above: int, num: int, what: str) -> str:
    """`1 of 909 batches exceeds`, `5 of 909 batches exceed`: what are the batches."""
    return f"{above:,} of {num:,} {what} {'exceeds' if above == 1 else 'exceed'}"


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
        "resampled": "resampled batches of all sources",
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
