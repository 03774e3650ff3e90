"""How often a rule was exceeded by fresh batches when it was tried many times on measured runs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """One policy and EP size. Shares are of fresh batches above the rounded allowance, means over repetitions; 1.0 is all.

    `same_mix` are batches of the strata that the rule saw, `one_stratum` of one of them alone, `other_strata` of others.
    `excess` is the rounded allowance's excess over 1 against that of the fresh batches' 99.9th percentile; below 1 is too little.
    """

    method: str
    date: str
    policy: str
    ep: int
    batch_tokens: int
    num_fitted_batches: int
    num_repetitions: int
    same_mix: float
    one_stratum: float
    other_strata: float
    excess: float
    source: str
