"""`make bench`: what a report of a large run costs: 1,000,000 tokens, 40 layers of 256 experts, top-8, simulated loads.

`routing fit` and `routing report` run in processes of their own; processor seconds and peak resident size of each. The limits
are those of the report: 20 s and 2 GB.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from routing.store.content import content_hash
from routing.store.run import Run, RunWriter, writing
from tests.stores import write_tiny_run

NUM_SEGMENTS, SEGMENT_TOKENS, NUM_LAYERS, NUM_EXPERTS, TOP_K, NUM_PARTS = 1000, 1000, 40, 256, 8, 20


def write_large_run(folder: Path, *, num_segments: int = NUM_SEGMENTS, num_parts: int = NUM_PARTS) -> None:
    """Trajectories of ten segments; every segment of a layer draws its rows from one liking of the layer's."""
    run = write_tiny_run(
        folder,
        paths=[range(first, first + 10) for first in range(0, num_segments, 10)],
        segment_tokens=[SEGMENT_TOKENS] * num_segments,
        loads=[],
        num_experts=NUM_EXPERTS,
        top_k=TOP_K,
        layers=range(NUM_LAYERS),
        planned_load_parts=num_parts,
        is_finished=False,
        label="simulated, large",
    )
    rng = np.random.default_rng(0)
    likings_LE = rng.gamma(30, 1 / 30, (NUM_LAYERS, NUM_EXPERTS))
    likings_LE /= likings_LE.sum(axis=1, keepdims=True)
    step = num_segments // num_parts
    with writing(folder):
        writer = RunWriter(folder, run.manifest)
        for part in range(num_parts):
            segments = np.arange(part * step, (part + 1) * step)
            loads = np.stack([rng.multinomial(SEGMENT_TOKENS * TOP_K, one, size=step) for one in likings_LE], axis=1)
            columns = {
                "segment_id": np.repeat(segments, NUM_LAYERS * NUM_EXPERTS),
                "layer": np.tile(np.repeat(np.arange(NUM_LAYERS), NUM_EXPERTS), step),
                "expert": np.tile(np.arange(NUM_EXPERTS), step * NUM_LAYERS),
                "routed_rows": loads.reshape(-1),
            }
            table = pa.table({name: column.astype(np.int32) for name, column in columns.items()})
            writer.commit("loads", part, table, rows_per_segment=NUM_LAYERS * NUM_EXPERTS)
        writer.update(state="finished", content_hash=content_hash(Run(folder=folder, manifest=writer.manifest)))


def cost(*arguments: str) -> tuple[float, int]:
    """(processor seconds, peak resident bytes) of one command in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "routing", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"routing {' '.join(arguments)}: ended with {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Prints both costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_large_run(folder / "run")
        run, table, page = (str(folder / one) for one in ("run", "allowances.yaml", "report.html"))
        for arguments in (("fit", run, "--out", table), ("report", run, "--allowances", table, "--out", page)):
            cpu_s, peak_bytes = cost(*arguments)
            print(f"routing {arguments[0]}, 1,000,000 tokens of 40 x 256: {cpu_s:.1f} s, peak {peak_bytes / 1e9:.2f} GB")
        print(f"the page: {Path(page).stat().st_size / 1e6:.2f} MB (limit 3)")


if __name__ == "__main__":
    main()
