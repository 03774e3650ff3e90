"""What an entry says of resampled batches, and of batches that a fit had not seen."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The imbalance that a batch of one run exceeds with probability 1e-3, and the 95% interval over resampled pools of units.

    `stratum` is null for the mix of all of the run's strata. `high` bounds the allowance from
    below.
    """

    run: str
    label: str
    stratum: str | None
    estimate: Decimal
    low: Decimal
    high: Decimal


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutBatch:
    """A batch of what was held out that is above the allowance which was fitted without it. Indices are 0-based."""

    batch: int
    layer: int
    rank: int
    imbalance: Decimal


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """One fit without a part of the counts, and the batches of that part.

    `part` says what was held out: half of the run's units, the policy, a stratum. `above` lists the largest of the `num_above`.
    """

    kind: Literal["units", "policy", "stratum"]
    run: str
    label: str
    part: str
    method: str
    allowance: Decimal
    num_batches: int
    num_above: int
    worst: Decimal | None
    above: tuple[HeldOutBatch, ...]
