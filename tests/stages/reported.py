"""Two tiny runs of one corpus and the table that was fitted to them, for tests of the report."""

from pathlib import Path

import numpy as np

from routing.stages.fit import fit
from tests.stores import random_loads, random_tree, write_tiny_run

EVIL = "<script>alert(1)</script>"
SHAPE = {"layers": (0, 1, 2), "num_experts": 8, "top_k": 2}
EPS, BATCH_SIZES = (2, 4), (60, 20)


def reported_runs(folder: Path) -> tuple[list[Path], Path]:
    """(two run folders, the second with HTML in its label; the table's file)."""
    paths, sizes = random_tree(np.random.default_rng(0), num_segments=60)
    folders = []
    for number, label in enumerate((f"toy {'base' * 20}", EVIL)):
        loads = random_loads(np.random.default_rng(number), segment_tokens=sizes, **SHAPE)
        folders.append(folder / f"run{number}")
        write_tiny_run(folders[-1], paths=paths, segment_tokens=sizes, loads=loads, label=label, **SHAPE)
    fit(folders, out=folder / "allowances.yaml", eps=EPS, batch_sizes=BATCH_SIZES, order="corpus")
    return folders, folder / "allowances.yaml"
