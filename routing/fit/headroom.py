"""`headroom-v1`: a share of headroom on the excess over 1, floors without headroom, rounding up, facts as caps and steps.

    core(n)      = 1 + 1.35 (worst over policies - 1)
    floor(n)     = every other observed or inferred value at n
    allowance(n) = ceil to 0.1 of max(core, floor), at least the allowance of every divisor of n, at most min(n, E / k)

Source: the smallest rule that gives the published 1.4 / 1.6 / 2.0 at EP 2 / 4 / 8 from the published worsts. It leaves out
how likely a larger imbalance is: its headroom is a choice, not an interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from routing.core.allowance import ALLOWANCE_GRID, ceil_to, proven_ceiling

METHOD = "headroom-v1"
HEADROOM = Decimal("1.35")


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """One allowance and what made it; `binds` is `core`, `floor`, `ep=N` (a divisor's allowance) or `ceiling`."""

    allowance: Decimal
    raw_bound: Fraction
    ceiling: Decimal
    ceiling_reason: str
    binds: str


def headroom_allowances(
    worsts: Mapping[int, Fraction], *, num_experts: int, top_k: int, floors: Mapping[int, Fraction] | None = None
) -> dict[int, Headroom]:
    """The allowance of every EP size in `worsts`, which holds the worst imbalance over policies, exact.

    `floors` holds the largest floor of an EP size, where there is one.
    """
    fitted: dict[int, Headroom] = {}
    for ep in sorted(worsts):
        core = 1 + Fraction(HEADROOM) * (worsts[ep] - 1)
        floor = (floors or {}).get(ep, Fraction(1))
        raw_bound, binds = (floor, "floor") if floor > core else (core, "core")
        allowance = ceil_to(raw_bound, ALLOWANCE_GRID)
        for divisor, smaller in fitted.items():
            if ep % divisor == 0 and smaller.allowance > allowance:
                allowance, binds = smaller.allowance, f"ep={divisor}"
        ceiling, reason = proven_ceiling(ep, num_experts=num_experts, top_k=top_k)
        if allowance > ceiling:
            allowance, binds = ceiling, "ceiling"
        fitted[ep] = Headroom(allowance=allowance, raw_bound=raw_bound, ceiling=ceiling, ceiling_reason=reason, binds=binds)
    return fitted
