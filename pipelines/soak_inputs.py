"""Odd files by the thousand through every reader: refused in one line, or read as they stand.

    python -m pipelines.soak_inputs [--inputs 100000] [--seed 0]

Prints a line a reader; exits 1 with the first bytes that gave a traceback, a message of several lines or a wrong answer.
"""

import argparse
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pipelines.odd.accidents import mutated
from pipelines.odd.readers import READERS, Reader, outcome


def soak(
    readers: Mapping[str, Reader], *, num_inputs: int, seed: int, folder: Path
) -> tuple[dict[str, Counter[str]], str | None]:
    """(outcomes by reader, the first fault in words); the inputs are the same for the same seed, readers in turn."""
    draw = random.Random(seed)
    counts = {name: Counter[str]() for name in readers}
    names = list(readers)
    for number in range(num_inputs):
        name = names[number % len(names)]
        reader = readers[name]
        raw = mutated(draw, draw.choice(reader.samples))
        try:
            counts[name][outcome(reader, raw, folder / "input")] += 1
        except Exception:  # whatever a reader may raise is what is looked for
            counts[name]["fault"] += 1
            return counts, f"{name}, input {number} of seed {seed}: {raw[:2_000]!r}\n{traceback.format_exc()}"
    return counts, None


def main() -> None:
    """Prints the outcomes of every reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many, over all readers")
    parser.add_argument("--seed", type=int, default=0, help="of the accidents")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts, fault = soak(READERS, num_inputs=options.inputs, seed=options.seed, folder=Path(folder))
    for name, found in counts.items():
        print(f"{name:<16} {found['read']:>8,} read {found['refused']:>8,} refused {found['fault']:>3} faults")
    print(f"{'all':<16} {sum(map(Counter.total, counts.values())):>8,} inputs, seed {options.seed}")
    if fault is not None:
        raise SystemExit(fault)


if __name__ == "__main__":
    main()
