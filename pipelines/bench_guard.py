"""`make bench`, the guard's part: what watching a training loop costs, by layer, beside what the trainer does anyway.

One layer is one `see`, and its share of the `end_step` that follows 40 of them: 256 experts at EP 8, even rows, so that nothing
is exceeded. The median of the steps, its 95% interval from order statistics, in processor time; of each kind that trainers have.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch

from pipelines.bench import median_with_interval
from routing.guard.watch import AllowanceGuard

EP, NUM_EXPERTS, NUM_LAYERS, ROWS = 8, 256, 40, 6_250  # 200k tokens x 8 experts over 256
LIMIT_US = 50.0


def layer_us(rows: Any, num_steps: int) -> list[float]:
    """Microseconds a layer, of each step."""
    guard = AllowanceGuard.load(ep=EP)
    spent = []
    for step in range(num_steps):
        began = time.process_time()
        for layer in range(NUM_LAYERS):
            guard.see(layer, rows)
        guard.end_step(step)
        spent.append(1e6 * (time.process_time() - began) / NUM_LAYERS)
    return spent


def main() -> None:
    """Prints the figures; exits 1 where a median is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    by_expert, by_rank = [ROWS] * NUM_EXPERTS, [ROWS * NUM_EXPERTS // EP] * EP
    kinds = {
        "list by expert": by_expert,
        "NumPy by expert": np.array(by_expert),
        "torch int64 by expert": torch.tensor(by_expert),
        "torch float32 by expert": torch.tensor(by_expert, dtype=torch.float32),
        "torch int64 by rank": torch.tensor(by_rank),
    }
    failed = []
    for name, rows in kinds.items():
        middle, low, high = median_with_interval(layer_us(rows, arguments.steps))
        print(f"guard, {name}: median {middle:.1f} us a layer, 95% interval {low:.1f} to {high:.1f} (limit {LIMIT_US:.0f} us)")
        failed += [name] if middle >= LIMIT_US else []
    if failed:
        raise SystemExit(f"too slow: {', '.join(failed)}")


if __name__ == "__main__":
    main()
