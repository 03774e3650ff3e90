"""The law that levels are read from: Gumbel, fitted by L-moments.

    scale = lambda_2 / ln 2        location = lambda_1 - gamma x scale        (gamma: Euler's constant)
    level = the value that a batch passes with probability PASSED

Two L-moments of 2,000 values are steady where the third, and so a free shape, is not: a free-shape law on 17 values covered the
true level in 31-42% of simulated worlds, at times above EP.
"""

import numpy as np
import numpy.typing as npt
from scipy import stats

PASSED = 1e-3
INTERVAL = 0.95
_DIGITS = 9  # a level's rounding noise must not lift a bound over a grid step

Floats = npt.NDArray[np.float64]


def levels(sample: Floats) -> Floats:
    """The level of each row of `sample`, batches along the last axis; a row without any spread is its own level."""
    first, second = stats.lmoment(np.sort(sample, axis=-1), order=[1, 2], axis=-1, sorted=True)
    scale = np.maximum(second, 0) / np.log(2)
    location = first - np.euler_gamma * scale
    found = stats.gumbel_r.isf(PASSED, loc=location, scale=np.where(scale > 0, scale, 1))
    return np.asarray(np.round(np.where(scale > 0, found, first), _DIGITS))


def interval(resampled: Floats) -> tuple[Floats, Floats]:
    """(low, high) ends of the 95% interval over resampled levels along the first axis: order statistics, outward."""
    tail = (1 - INTERVAL) / 2
    low = np.quantile(resampled, tail, axis=0, method="lower")
    return low, np.quantile(resampled, 1 - tail, axis=0, method="higher")
