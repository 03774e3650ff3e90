"""`make bench`: what it costs to ask a large run again: 35M loads (3.42M tokens, 40 x 256 experts), and ten times as many.

Processor seconds of opening the run and asking it, in a process of its own, imports apart: the first time, which counts, and
again, which takes the answer from the run's cache. The limit holds for the largest of three times again, at 35M.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from pipelines.bench_report import NUM_EXPERTS, NUM_LAYERS, SEGMENT_TOKENS, cost, write_large_run

SEGMENTS_A_PART = 180
SMALL, LARGE = 19 * SEGMENTS_A_PART, 190 * SEGMENTS_A_PART
LIMIT_AGAIN_S = 0.3
ASK = """
import sys, time, warnings
import duckdb, polars
import routing.stages.frames as frames
warnings.simplefilter("ignore")
began = time.process_time()
frames.open_run(sys.argv[1]).imbalance(ep=[2, 4, 8])
print(time.process_time() - began)
"""


def ask_s(folder: Path) -> float:
    """Processor seconds of one opening and one question, EP 2, 4, 8 at 200k, 20k and 2k tokens."""
    return float(subprocess.run([sys.executable, "-c", ASK, str(folder)], capture_output=True, text=True, check=True).stdout)


def case(num_segments: int) -> float:
    """Prints one size; the largest of three times again."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "large"
        write_large_run(folder, num_segments=num_segments, num_parts=num_segments // SEGMENTS_A_PART)
        num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        first_s, again_s = ask_s(folder), max(ask_s(folder) for _ in range(3))
        command_s, _ = cost("imbalance", str(folder))
        kept_bytes = sum(path.stat().st_size for path in (folder / "cache").iterdir())
    cells = num_segments * NUM_LAYERS * NUM_EXPERTS
    size = f"{cells / 1e6:.0f}M loads, {num_segments * SEGMENT_TOKENS / 1e6:.2f}M tokens, {num_bytes / 1e6:.0f} MB"
    times = f"first {first_s:.2f} s of processor time, again {again_s:.3f} s, the whole command again {command_s:.2f} s"
    print(f"imbalance, {size}: {times}; cache {kept_bytes} bytes", flush=True)
    return again_s


def main() -> None:
    """Prints the figures; exits 1 where asking again is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenfold", action="store_true", help="350M loads too, some minutes and a few hundred MB of disk")
    options = parser.parse_args()
    again_s = case(SMALL)
    if options.tenfold:
        case(LARGE)
    if again_s >= LIMIT_AGAIN_S:
        raise SystemExit(f"asking again took {again_s:.3f} s of processor time, the limit is {LIMIT_AGAIN_S}")


if __name__ == "__main__":
    main()
