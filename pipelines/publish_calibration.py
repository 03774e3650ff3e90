"""data/measured/calibration.csv from what `pipelines.calibrate_rules` printed, so that a report shows how its rule did.

    python -m pipelines.calibrate_rules RUN... > calibration.md
    python -m pipelines.publish_calibration calibration.md --method strat-boot-v3 --date 2026-11-30 --source 'retail runs ...' \\
        --batch-tokens 20000 --fitted-batches 17

Rows of the same method, batch size and source are replaced, others stay.
"""

import argparse
import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from routing.core.calibration import Calibration
from routing.store.calibrations import COLUMNS, read_calibrations
from routing.store.files import write_bytes

TARGET = Path("data/measured/calibration.csv")
RULE = "default, up to 0.1"


def calibrations(
    text: str, *, method: str, date: str, source: str, batch_tokens: int, num_fitted: int
) -> Iterator[Calibration]:
    """The rows of RULE in a table that `calibrate_rules` printed; percents become shares."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) != 9 or cells[2] != RULE:
            continue
        means = [float(cell.split()[0]) if cell != "none" else 0.0 for cell in cells[3:8]]
        yield Calibration(
            method=method,
            date=date,
            policy=cells[0],
            ep=int(cells[1]),
            batch_tokens=batch_tokens,
            num_fitted_batches=num_fitted,
            num_repetitions=int(cells[8].split()[0]),
            same_mix=round(means[0] / 100, 8),
            one_stratum=round(means[1] / 100, 8),
            other_strata=round(means[3] / 100, 8),
            excess=means[4],
            source=source,
        )


def csv_text(rows: list[Calibration]) -> str:
    """The file's text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


def main() -> None:
    """Replaces the rows of one method, batch size and source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("printed", type=Path, help="what calibrate_rules printed")
    parser.add_argument("--method", required=True, help="the rule that it tried, as tables name it")
    parser.add_argument("--date", required=True)
    parser.add_argument("--source", required=True, help="on which runs, in a few words")
    parser.add_argument("--batch-tokens", type=int, required=True, help="as calibrate_rules had it")
    parser.add_argument("--fitted-batches", type=int, required=True, help="as calibrate_rules had it")
    parser.add_argument("--out", type=Path, default=TARGET)
    asked = parser.parse_args()
    known = read_calibrations(asked.out) if asked.out.exists() else ()
    which = (asked.method, asked.batch_tokens, asked.source)
    kept = [one for one in known if (one.method, one.batch_tokens, one.source) != which]
    words = {"method": asked.method, "date": asked.date, "source": asked.source}
    sizes = {"batch_tokens": asked.batch_tokens, "num_fitted": asked.fitted_batches}
    found = list(calibrations(asked.printed.read_text(encoding="utf-8"), **words, **sizes))
    if not found:
        raise SystemExit(f"{asked.printed}: no row of the rule {RULE!r}; give what pipelines.calibrate_rules printed")
    write_bytes(asked.out, csv_text([*kept, *found]).encode())


if __name__ == "__main__":
    main()
