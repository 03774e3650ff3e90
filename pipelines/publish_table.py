"""Writes the committed allowances.yaml from published figures: which figures, which model, which batch size.

    python -m pipelines.publish_table

A table that already says the same is left as it is, with its time; a person's comments stay in one that changes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from routing.core.allowance import AllowanceTable, Generated
from routing.core.errors import DamagedDataError, RoutingError
from routing.fit.published import fit_published
from routing.fit.table import table_model
from routing.stages.provenance import tool_commit, tool_version, utc_now
from routing.store.allowances import read_table, rewrite_table
from routing.store.model_shapes import find_shape
from routing.store.published import read_published_worsts

FIGURES = Path("data/published/routing_worsts.csv")
MODEL = "qwen3.6-35b-a3b"
ALIASES = ("qwen3.5-35b-a3b",)  # the same layers, experts and widths
REFERENCE_BATCH_TOKENS = 200_000
OUT = Path("allowances.yaml")


def published_table(figures: Path, generated: Generated, eps: Sequence[int] = ()) -> tuple[AllowanceTable, str]:
    """(The table of the choices above, what it rests on in one line); `eps` are sizes to have beside those of the figures."""
    model = table_model(MODEL, find_shape(MODEL).routed, ALIASES)
    rows = read_published_worsts(figures)
    table, cautions = fit_published(
        rows, model=model, reference_batch_tokens=REFERENCE_BATCH_TOKENS, generated=generated, eps=eps
    )
    return table, "; ".join(caution.message for caution in cautions)


def publish(figures: Path, out: Path, eps: Sequence[int] = ()) -> str:
    """Writes `out` where its entries would change; returns what was done."""
    generated = Generated(tool_version=tool_version(), tool_commit=tool_commit()[0], generated_at=utc_now())
    table, rests_on = published_table(figures, generated, eps)
    if _holds(out, table):
        return f"{out}: up to date; {rests_on}"
    rewrite_table(out, table)
    return f"{out}: written; {rests_on}"


def _holds(out: Path, table: AllowanceTable) -> bool:
    """Whether `out` has the same entries; not where they were edited by hand, which is what publishing again mends."""
    try:
        held = read_table(out) if out.exists() else None
        return held is not None and (held.model, held.entries) == (table.model, table.entries)
    except DamagedDataError:
        return False


def main() -> None:
    """Publishes, or says in one line why not."""
    parser = argparse.ArgumentParser(description="Fit the committed allowance table to published figures.")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the CSV of published worsts")
    parser.add_argument("--out", type=Path, default=OUT, help="the table to write")
    parser.add_argument("--ep", type=int, nargs="+", default=(), help="EP sizes to imply where the figures lack them")
    asked = parser.parse_args()
    try:
        print(publish(asked.figures, asked.out, asked.ep), file=sys.stderr)
    except RoutingError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
