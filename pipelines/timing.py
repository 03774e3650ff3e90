"""Times of ways to do one thing, taken in turns within one run, what may be said of their ratios, and what a process took.

Standard library alone: the GPU script runs where there is no scipy.
"""

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# A process's peak begins with that of the one that started it, so a small one stands between.
_BETWEEN = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = {"peak_bytes": used.ru_maxrss * 1024, "processor_s": used.ru_utime + used.ru_stime}
print(json.dumps({"exit_code": done.returncode, "stdout": done.stdout.decode(), **spent}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a process took and printed: peak resident bytes, processor seconds of user and system."""

    exit_code: int
    stdout: str
    peak_bytes: int
    processor_s: float


def spent_by(command: Sequence[str]) -> Spent:
    """Runs `command` to its end."""
    done = subprocess.run([sys.executable, "-c", _BETWEEN, *command], stdout=subprocess.PIPE, check=True)
    return Spent(**json.loads(done.stdout))


def interleaved(
    ways: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of every way in every round, after one call each that isn't counted.

    Every round has an order of its own, drawn from one seed: what a way leaves behind in caches and the allocator falls on all.
    Processor time by default: of what else runs on the machine only the caches that it takes enter.
    """
    for call in ways.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    orders = random.Random(0)
    for _ in range(rounds):
        for name in orders.sample(list(ways), len(ways)):
            began = clock()
            ways[name]()
            seconds[name].append(clock() - began)
    return seconds


def ratios(seconds: Mapping[str, Sequence[float]], name: str, *, over: str) -> list[float]:
    """One way's seconds over another's, round by round."""
    return [one / other for one, other in zip(seconds[name], seconds[over], strict=True)]


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95% interval between order statistics, which assumes no distribution."""
    ordered = sorted(values)
    num = len(ordered)
    rank = _lowest_rank(num)
    middle = (ordered[(num - 1) // 2] + ordered[num // 2]) / 2
    return middle, ordered[max(rank - 1, 0)], ordered[min(num - rank, num - 1)]


def _lowest_rank(num: int) -> int:
    """The 2.5% quantile of heads among `num` tosses of a fair coin: the fewest with at least that chance below or at them."""
    chance, tosses = 0, 2**num
    for heads in range(num + 1):
        chance += math.comb(num, heads)
        if 40 * chance >= tosses:
            return heads
    raise AssertionError("chances add up to one")
