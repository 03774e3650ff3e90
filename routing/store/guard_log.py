"""The guard's log: JSON Lines, one exceedance a line, appended while a trainer runs and read by a fit."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

from routing.core.errors import InputError
from routing.core.exceedance import Exceedance
from routing.store.files import read_text


def exceedance_line(one: Exceedance) -> str:
    """One JSON object, decimals as numbers."""
    return json.dumps(asdict(one), default=_number)


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Appends whole lines, or raises OSError; a line that a killed writer left torn is not continued."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+", buffering=0) as stream:
        is_torn = stream.seek(0, os.SEEK_END) > 0 and stream.seek(-1, os.SEEK_END) >= 0 and stream.read(1) != b"\n"
        content = ("\n" * is_torn + "".join(f"{line}\n" for line in lines)).encode()
        written = stream.write(content)
        if written != len(content):
            raise OSError(f"{written} of {len(content)} bytes written")


def read_exceedances(path: Path) -> tuple[Exceedance, ...]:
    """Every line of a guard's log; InputError with line and field for one that is none, StorageError where reading fails."""
    from routing.store.records import decode_record
    from routing.store.yaml_nodes import read_nodes

    found = []
    text = read_text(path, what="a guard's log", missing="AllowanceGuard(..., log=FILE) writes it when an allowance is exceeded")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            if line.lstrip().startswith("{") and not line.rstrip().endswith("}"):
                raise InputError(f"{where}: the line is torn, as a killed writer leaves it; remove this line")
            found.append(decode_record(Exceedance, read_nodes(line, where=where), where=where))
    return tuple(found)


def _number(value: Decimal) -> float:
    return float(value)
