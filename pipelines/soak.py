"""`make soak`: each verb that writes, killed with -9 at random moments until it was killed often; seeded, one line a verb."""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.kills import commands, kill_at_random

NUM_KILLS = {"measure": 18, "import": 8, "fit": 8, "refresh": 16}
SEED = 50


def main() -> None:
    """Prints what was killed and how far it had come; ends in an AssertionError where one did not end like an untouched one."""
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # what killed processes held is cleaned up, and that is warned of
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else SEED
    draw = random.Random(seed)
    print(f"{sum(NUM_KILLS.values())} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for verb, command in commands(Path(folder)).items():
            began = time.monotonic()
            found = kill_at_random(command, num_kills=NUM_KILLS[verb], draw=draw)
            seen = ", ".join(f"{count} at {how_far!r}" for how_far, count in sorted(found.seen.items()))
            elapsed_s = time.monotonic() - began
            print(f"{verb}: {found.seen.total()} kills in {found.num_runs} runs, {elapsed_s:.0f} s: {seen}", flush=True)


if __name__ == "__main__":
    main()
