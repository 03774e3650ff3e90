"""Published imbalances as CSV: the only reader. Decimals are the digits of the file."""

import re
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.core.published import PublishedWorst
from routing.store.csv_rows import read_rows, whole

COLUMNS = tuple(field.name for field in fields(PublishedWorst))
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")


def read_published_worsts(path: Path) -> tuple[PublishedWorst, ...]:
    """The rows in file order; InputError with the line for what is none, StorageError where reading fails."""
    return read_rows(path, what="a file of published worsts", columns=COLUMNS, row=_row)


def _row(cells: dict[str, str]) -> PublishedWorst:
    values: dict[str, Any] = dict(cells)
    for name in ("ep", "batch_tokens", "tokens"):
        values[name] = whole(name, cells[name]) if cells[name] else None
    if values["ep"] is None:
        raise InputError("ep is empty")
    if not _DECIMAL.fullmatch(cells["worst_imbalance"]):
        raise InputError(f"worst_imbalance: {cells['worst_imbalance'][:40]!r} is not a decimal number")
    return PublishedWorst(**values | {"worst_imbalance": Decimal(cells["worst_imbalance"])})
