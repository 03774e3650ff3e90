"""`make trace`: traced peaks of five geometries beside the closed form, to data/traced/transformers_steps.csv (about 15 minutes).

Rows routed 1.0, 1.5 and 2.0 times tokens x k at 4 layers, 1.0 at 8 layers; frozen experts and LoRA on them; head in chunks.
"""

import argparse
import csv
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import torch
import transformers

from pipelines.trace.geometries import GEOMETRIES, config_of, shape_of
from pipelines.trace.step import Step, trace
from routing.estimate.autograd import Sizes, peak

TOKENS = (2048, 8192, 16384, 32768)
EXPERT_RANKS = (0, 8)
DEPTHS_AND_SHARES = ((4, "1.0"), (4, "1.5"), (4, "2.0"), (8, "1.0"))
OUT = Path(__file__).resolve().parents[2] / "data" / "traced" / "transformers_steps.csv"
FIELDS = (
    *("geometry", "num_layers", "tokens", "routed_share", "routed_pairs", "expert_rank", "linear_rank", "head", "gdn"),
    *("traced_bytes", "priced_bytes", "over_fraction", "priced_instant", "torch", "transformers"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One step of the grid; `share` is routed pairs over tokens x k."""

    geometry: str
    num_layers: int
    tokens: int
    share: str
    expert_rank: int
    head: str = "chunked"

    def measure(self) -> dict[str, object]:
        """The cell traced and priced, a row of the CSV."""
        shape = shape_of(self.geometry, self.num_layers)
        pairs = int(Decimal(self.share) * self.tokens * shape.top_k)
        step = Step(
            num_tokens=self.tokens,
            routed_rows=pairs,
            expert_rank=self.expert_rank,
            head="full" if self.head == "full" else "chunked",
        )
        traced = trace(config_of(self.geometry, self.num_layers), step).peak_bytes
        priced = peak(
            shape,
            Sizes(
                tokens=self.tokens,
                pairs=pairs,
                linear_rank=step.linear_rank,
                expert_rank=self.expert_rank,
                full_head=self.head == "full",
            ),
        )
        values = (
            *(self.geometry, self.num_layers, self.tokens, self.share, pairs, self.expert_rank, step.linear_rank, self.head),
            *(step.gdn if shape.has_gdn else "none", traced, priced.num_bytes, f"{priced.num_bytes / traced - 1:.5f}"),
            *(priced.name, torch.__version__, transformers.__version__),
        )
        return dict(zip(FIELDS, values, strict=True))


def cells(geometries: Sequence[str], tokens: Sequence[int]) -> Iterator[Cell]:
    """The grid in the order of the file; the full head at 8,192 tokens, once a geometry."""
    for geometry in geometries:
        for num_tokens in tokens:
            for rank in EXPERT_RANKS:
                for depth, share in DEPTHS_AND_SHARES:
                    yield Cell(geometry=geometry, num_layers=depth, tokens=num_tokens, share=share, expert_rank=rank)
        yield Cell(geometry=geometry, num_layers=4, tokens=8192, share="1.0", expert_rank=0, head="full")


def main() -> None:
    """Writes the grid; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--geometry", nargs="+", default=list(GEOMETRIES), choices=GEOMETRIES)
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_name(options.out.name + ".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for cell in cells(options.geometry, options.tokens):
            row = cell.measure()
            writer.writerow(row)
            print(cell, row["traced_bytes"], row["over_fraction"], row["priced_instant"], file=sys.stderr, flush=True)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, options.out)


if __name__ == "__main__":
    main()
