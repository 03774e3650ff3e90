"""Calibrations of the fit rules as CSV, as `pipelines.publish_calibration` writes it: the only reader."""

from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

from routing.core.calibration import Calibration
from routing.core.errors import InputError
from routing.store.csv_rows import read_rows, whole

COLUMNS = tuple(field.name for field in fields(Calibration))
_SHARES = ("same_mix", "one_stratum", "other_strata", "excess")


def read_calibrations(path: Path) -> tuple[Calibration, ...]:
    """The rows in file order; InputError with the line for what is none, StorageError where reading fails."""
    return read_rows(path, what="a file of calibrations", columns=COLUMNS, row=_row)


def _row(cells: dict[str, str]) -> Calibration:
    values: dict[str, Any] = dict(cells)
    values |= {name: whole(name, cells[name]) for name in ("ep", "batch_tokens", "num_fitted_batches", "num_repetitions")}
    return Calibration(**values | {name: _share(name, cells[name]) for name in _SHARES})


def _share(name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise InputError(f"{name}: {cell[:40]!r} is no share")
    return value
