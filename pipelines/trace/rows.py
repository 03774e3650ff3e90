"""CSV files of measurements, written whole or not at all."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from routing.store.files import write_bytes


def write_rows(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """`rows` under a header of `names`; StorageError where it can't be written, and what was there stays."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
