"""data/measured/calibration.csv from what `pipelines.calibrate_rules` printed, so that a report shows how its rule did.

    python -m pipelines.calibrate_rules RUN... > calibration.md
    python -m pipelines.publish_calibration calibration.md --method strat-boot-v3 --date 2026-11-30 --source 'retail runs ...'

Batch size and number of fitted batches are those of the printed heading. Rows of the same method, sizes and source are
replaced, others stay.
"""

import argparse
import csv
import datetime
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from routing.core.calibration import Calibration
from routing.core.errors import InputError, RoutingError
from routing.store.calibrations import COLUMNS, read_calibrations
from routing.store.files import write_bytes

TARGET = Path("data/measured/calibration.csv")
RULE = "default, up to 0.1"
NUM_CELLS = 9
HEADING = r"^Batches of ([1-9][0-9]*) tokens, fitted on ([1-9][0-9]*) of them, seed "


def calibrations(
    text: str, *, method: str, date: str, source: str, batch_tokens: int, num_fitted: int
) -> Iterator[Calibration]:
    """The rows of RULE in a table that `calibrate_rules` printed; percents become shares. InputError where one has no figure."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != NUM_CELLS or cells[2] != RULE:
            continue
        same, one, _, other, excess = (_figure(cell, line) for cell in cells[3:8])
        yield Calibration(
            method=method,
            date=date,
            policy=cells[0],
            ep=int(_figure(cells[1], line)),
            batch_tokens=batch_tokens,
            num_fitted_batches=num_fitted,
            num_repetitions=int(_figure(cells[8], line)),
            same_mix=round(same / 100, 8),
            one_stratum=round(one / 100, 8),
            other_strata=round(other / 100, 8),
            excess=excess,
            source=source,
        )


def sizes_of(text: str) -> tuple[int, int]:
    """(batch tokens, fitted batches) of the one heading; InputError where there is none, or another."""
    found = re.findall(HEADING, text, flags=re.MULTILINE)
    if len(found) != 1:
        what = f"{len(found)} headings 'Batches of N tokens, fitted on M of them'"
        raise InputError(f"{what}; give what one pipelines.calibrate_rules printed")
    batch_tokens, num_fitted = map(int, found[0])
    return batch_tokens, num_fitted


def _figure(cell: str, line: str) -> float:
    """The figure before its interval. `none` (no such fresh batches, or the rule was never fitted) is no zero."""
    word = cell.split(" ")[0]
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", word):
        raise InputError(f"{word[:40]!r} is no figure, in {line[:80]!r}; every column needs one, so draw from four or more files")
    return float(word)


def csv_text(rows: list[Calibration]) -> str:
    """The file's text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


def publish(printed: Path, out: Path, *, method: str, date: str, source: str) -> None:
    """Replaces the rows of one method, batch size, number of fitted batches and source in `out`."""
    try:
        text = printed.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{printed}: can't be read ({error}); give what pipelines.calibrate_rules printed") from error
    batch_tokens, num_fitted = sizes_of(text)
    found = list(
        calibrations(text, method=method, date=date, source=source, batch_tokens=batch_tokens, num_fitted=num_fitted)
    )
    places = [(one.policy, one.ep) for one in found]
    if not found or len(set(places)) != len(places):
        rows = f"{len(found)} rows of the rule {RULE!r}, {len(set(places))} places"
        raise InputError(f"{printed}: {rows}; one a policy and EP size")
    known = read_calibrations(out) if out.exists() else ()
    kept = [one for one in known if _group(one) != _group(found[0])]
    write_bytes(out, csv_text([*kept, *found]).encode())


def _group(one: Calibration) -> tuple[object, ...]:
    return one.method, one.batch_tokens, one.num_fitted_batches, one.source


def _date(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


def _words(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError("a few words on one line")
    return text


def main() -> None:
    """Publishes, or says in one line why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("printed", type=Path, help="what calibrate_rules printed")
    parser.add_argument("--method", type=_words, required=True, help="the rule that it tried, as tables name it")
    parser.add_argument("--date", type=_date, required=True, help="YYYY-MM-DD")
    parser.add_argument("--source", type=_words, required=True, help="on which runs, in a few words")
    parser.add_argument("--out", type=Path, default=TARGET)
    asked = parser.parse_args()
    try:
        publish(asked.printed, asked.out, method=asked.method, date=asked.date, source=asked.source)
    except RoutingError as error:
        print(f"pipelines.publish_calibration: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
