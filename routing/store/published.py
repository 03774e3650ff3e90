"""Published imbalances as CSV: the only reader. Decimals are the digits of the file."""

import csv
import re
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.core.published import PublishedWorst
from routing.store.files import read_text

COLUMNS = tuple(field.name for field in fields(PublishedWorst))
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")


def read_published_worsts(path: Path) -> tuple[PublishedWorst, ...]:
    """The rows in file order; InputError with the line for what is none, StorageError where reading fails."""
    text = read_text(path, what="a file of published worsts")
    rows = csv.reader(text.splitlines(), strict=True)
    found = []
    try:
        if tuple(next(rows, ())) != COLUMNS:
            raise InputError(f"the columns are not {','.join(COLUMNS)}")
        for cells in rows:
            if len(cells) != len(COLUMNS):
                raise InputError(f"{len(cells)} cells, not {len(COLUMNS)}")
            found.append(_row(dict(zip(COLUMNS, cells, strict=True))))
    except (InputError, csv.Error) as error:
        raise InputError(f"{path}:{max(1, rows.line_num)}: {error}") from error
    return tuple(found)


def _row(cells: dict[str, str]) -> PublishedWorst:
    values: dict[str, Any] = dict(cells)
    for name in ("ep", "batch_tokens", "tokens"):
        values[name] = _whole(name, cells[name])
    if values["ep"] is None:
        raise InputError("ep is empty")
    if not _DECIMAL.fullmatch(cells["worst_imbalance"]):
        raise InputError(f"worst_imbalance: {cells['worst_imbalance'][:40]!r} is not a decimal number")
    return PublishedWorst(**values | {"worst_imbalance": Decimal(cells["worst_imbalance"])})


def _whole(name: str, cell: str) -> int | None:
    if cell and not _WHOLE.fullmatch(cell):
        raise InputError(f"{name}: {cell[:40]!r} is not a whole number")
    return int(cell) if cell else None
