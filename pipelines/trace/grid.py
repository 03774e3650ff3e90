"""`make trace`: traced peaks of five geometries beside the closed form, to data/traced/transformers_steps.csv (about 20 minutes).

Rows routed 1.0, 1.5 and 2.0 times tokens x k at 4 layers, 1.0 at 8 layers; frozen experts and LoRA on them; head in chunks; GDN
as its kernels save, and in PyTorch's own code. A cell that the file has from the same torch and transformers is priced again and
not traced again, unless --again says so.
"""

import argparse
import csv
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

import torch
import transformers

from pipelines.trace.geometries import GEOMETRIES, config_of, shape_of
from pipelines.trace.rows import write_rows
from pipelines.trace.step import Step, trace
from routing.estimate.autograd import Sizes, peak

TOKENS = (2048, 8192, 16384, 32768)
EXPERT_RANKS = (0, 8)
DEPTHS_AND_SHARES = ((4, "1.0"), (4, "1.5"), (4, "2.0"), (8, "1.0"))
# PyTorch's scan is a dozen operations for every 64 tokens: a second of tracing for 500 tokens of one layer
FALLBACK_TOKENS_AND_DEPTHS = ((3072, 4), (4096, 4), (3072, 8))
OUT = Path(__file__).resolve().parents[2] / "data" / "traced" / "transformers_steps.csv"
FIELDS = (
    *("geometry", "num_layers", "tokens", "routed_share", "routed_pairs", "expert_rank", "linear_rank", "head", "gdn"),
    *("traced_bytes", "priced_bytes", "over_fraction", "priced_instant", "torch", "transformers"),
)


KEYS = ("geometry", "num_layers", "tokens", "routed_share", "expert_rank", "head", "gdn")
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One step of the grid; `share` is routed pairs over tokens x k, `gdn` is of no account without GDN layers."""

    geometry: str
    num_layers: int
    tokens: int
    share: str
    expert_rank: int
    head: Literal["chunked", "full"] = "chunked"
    gdn: Literal["mirrored", "fallback"] = "mirrored"

    def measure(self, traced_bytes: int | None = None) -> dict[str, object]:
        """The cell traced (unless it has been) and priced, a row of the CSV."""
        shape = shape_of(self.geometry, self.num_layers)
        pairs = int(Decimal(self.share) * self.tokens * shape.top_k)
        step = Step(num_tokens=self.tokens, routed_rows=pairs, expert_rank=self.expert_rank, head=self.head, gdn=self.gdn)
        if traced_bytes is None:
            traced_bytes = trace(config_of(self.geometry, self.num_layers), step).peak_bytes
        sizes = Sizes(
            tokens=self.tokens,
            pairs=pairs,
            linear_rank=step.linear_rank,
            expert_rank=self.expert_rank,
            full_head=self.head == "full",
            fused_gdn=self.gdn == "mirrored",
        )
        priced = peak(shape, sizes)
        values = (
            *(self.geometry, self.num_layers, self.tokens, self.share, pairs, self.expert_rank, step.linear_rank, self.head),
            *(self.key[-1], traced_bytes, priced.num_bytes, f"{priced.num_bytes / traced_bytes - 1:.5f}", priced.name),
            *VERSIONS.values(),
        )
        return dict(zip(FIELDS, values, strict=True))

    @property
    def key(self) -> tuple[str, ...]:
        """What tells its row from others, as text in the order of KEYS."""
        gdn = self.gdn if shape_of(self.geometry, self.num_layers).has_gdn else "none"
        return (*map(str, (self.geometry, self.num_layers, self.tokens, self.share, self.expert_rank, self.head)), gdn)


def cells(geometries: Sequence[str], tokens: Sequence[int]) -> Iterator[Cell]:
    """The grid in the order of the file; the full head at 8,192 tokens, once a geometry; the fallback at sizes of its own."""
    for geometry in geometries:
        for num_tokens in tokens:
            for rank in EXPERT_RANKS:
                for depth, share in DEPTHS_AND_SHARES:
                    yield Cell(geometry=geometry, num_layers=depth, tokens=num_tokens, share=share, expert_rank=rank)
        yield Cell(geometry=geometry, num_layers=4, tokens=8192, share="1.0", expert_rank=0, head="full")
        if shape_of(geometry, 4).has_gdn:
            for num_tokens, depth in FALLBACK_TOKENS_AND_DEPTHS:
                for rank in EXPERT_RANKS:
                    yield Cell(
                        geometry=geometry, num_layers=depth, tokens=num_tokens, share="1.0", expert_rank=rank, gdn="fallback"
                    )


def read_rows(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a written grid by key; none where it isn't there."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {tuple(row[name] for name in KEYS): row for row in csv.DictReader(file)}


def main() -> None:
    """Writes the grid; progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--geometry", nargs="+", default=list(GEOMETRIES), choices=GEOMETRIES)
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    parser.add_argument("--again", action="store_true", help="trace every cell, also those that the file has")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if options.out == OUT and (options.geometry, options.tokens) != (list(GEOMETRIES), list(TOKENS)):
        parser.error("a part of the grid takes an --out of its own: the committed file holds all of it")
    kept = {} if options.again else read_rows(options.out)
    rows = []
    for cell in cells(options.geometry, options.tokens):
        before = kept.get(cell.key)
        same = before is not None and all(before[name] == version for name, version in VERSIONS.items())
        rows.append(cell.measure(int(before["traced_bytes"]) if before and same else None))
        print(
            cell, *(rows[-1][name] for name in ("traced_bytes", "over_fraction", "priced_instant")), file=sys.stderr, flush=True
        )
    write_rows(options.out, FIELDS, rows)


if __name__ == "__main__":
    main()
