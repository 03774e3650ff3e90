"""CSV files with a fixed heading: read whole, refused with the line."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from routing.core.errors import InputError
from routing.store.files import read_text

Row = TypeVar("Row")
_WHOLE = re.compile(r"[0-9]{1,15}")


def read_rows(path: Path, *, what: str, columns: tuple[str, ...], row: Callable[[dict[str, str]], Row]) -> tuple[Row, ...]:
    """What `row` makes of each line's cells, in file order.

    InputError with the line for another heading, for too few or too many cells and for what `row` refuses; StorageError where
    reading fails.
    """
    rows = csv.reader(io.StringIO(read_text(path, what=what), newline=""), strict=True)
    found = []
    try:
        if tuple(next(rows, ())) != columns:
            raise InputError(f"the columns are not {','.join(columns)}")
        for cells in rows:
            if len(cells) != len(columns):
                raise InputError(f"{len(cells)} cells, not {len(columns)}")
            found.append(row(dict(zip(columns, cells, strict=True))))
    except (InputError, csv.Error) as error:
        raise InputError(f"{path}:{max(1, rows.line_num)}: {error}") from error
    return tuple(found)


def whole(name: str, cell: str) -> int:
    """A whole number of at most 15 digits."""
    if not _WHOLE.fullmatch(cell):
        raise InputError(f"{name}: {cell[:40]!r} is not a whole number")
    return int(cell)
