"""Times of several ways to do one thing, taken in turns within one run, and what may be said of their ratios.

Standard library alone: the GPU script runs where there is no scipy.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(
    ways: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of every way in every round, after one call each that isn't counted.

    The way that goes first moves on by one a round, so that none always follows the same other. Processor time by default: what
    else runs on the machine does not enter.
    """
    for call in ways.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
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
