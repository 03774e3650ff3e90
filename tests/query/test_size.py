"""A run of 400k tokens and 460,800 loads is answered by a process of its own; `make bench` says how fast."""

import subprocess
import sys

import numpy as np
import pyarrow as pa

from routing.store.content import content_hash
from routing.store.run import Run, RunWriter, writing
from tests.stores import write_tiny_run

SCRIPT = """
import sys
from pathlib import Path
from routing.query.imbalance import imbalance_rows
from routing.store.run import open_run

rows, _ = imbalance_rows(open_run(Path(sys.argv[1])), eps=[2, 4, 8], batch_sizes=[200_000, 20_000, 2_000])
print([row["num_batches"] for row in rows[:3]])
"""


def test_a_run_of_400k_tokens_is_cut_at_three_sizes(tmp_path):
    num_segments, num_layers, num_experts, tokens = 900, 8, 64, 448
    run = write_tiny_run(
        tmp_path / "run",
        paths=[range(first, first + 10) for first in range(0, num_segments, 10)],
        segment_tokens=[tokens] * num_segments,
        loads=[],
        num_experts=num_experts,
        top_k=8,
        layers=range(num_layers),
        planned_load_parts=1,
        is_finished=False,
    )
    # 448 x 8 rows over 64 experts are 56 each; a neighbour lends up to 50 to the other.
    lent = np.random.default_rng(0).integers(-50, 51, (num_segments, num_layers, num_experts // 2, 1))
    columns = {
        "segment_id": np.repeat(np.arange(num_segments), num_layers * num_experts),
        "layer": np.tile(np.repeat(np.arange(num_layers), num_experts), num_segments),
        "expert": np.tile(np.arange(num_experts), num_segments * num_layers),
        "routed_rows": (56 + lent * np.array([1, -1])).reshape(-1),
    }
    with writing(run.folder):
        writer = RunWriter(run.folder, run.manifest)
        writer.commit("loads", 0, pa.table(columns), rows_per_segment=num_layers * num_experts)
        writer.update(state="finished", content_hash=content_hash(Run(folder=run.folder, manifest=writer.manifest)))
    command = [sys.executable, "-c", SCRIPT, str(run.folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "[2, 20, 180]"  # 447, 45 and 5 segments reach the sizes: 900 / 447, 900 / 45, 900 / 5
