"""Measured memory peaks as CSV: the only reader."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from routing.core.peak import MeasuredPeak
from routing.store.csv_rows import read_rows, whole

COLUMNS = tuple(field.name for field in fields(MeasuredPeak))


def read_peaks(path: Path) -> tuple[MeasuredPeak, ...]:
    """The rows in file order; InputError with the line for what is none, StorageError where reading fails."""
    return read_rows(path, what="a file of measured peaks", columns=COLUMNS, row=_row)


def _row(cells: dict[str, str]) -> MeasuredPeak:
    values: dict[str, Any] = dict(cells)
    return MeasuredPeak(**values | {name: whole(name, cells[name]) for name in ("baseline_bytes", "peak_bytes")})
