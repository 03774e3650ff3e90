"""`headroom-v1`: a share of headroom on the excess over 1, floors without headroom, rounding up, facts as caps and steps.

    core(n)      = 1 + 1.35 (worst over policies - 1)
    floor(n)     = every other observed or inferred value at n
    allowance(n) = ceil to 0.1 of max(core, floor), at least the allowance of every divisor of n, at most min(n, E / k)

Source: the smallest rule that gives the published 1.4 / 1.6 / 2.0 at EP 2 / 4 / 8 from the published worsts. It leaves out
how likely a larger imbalance is: its headroom is a choice, not an interval.
"""

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from routing.fit.steps import Allowed, Raw, stepped

METHOD = "headroom-v1"
HEADROOM = Decimal("1.35")


def headroom_allowances(
    worsts: Mapping[int, Fraction], *, num_experts: int, top_k: int, floors: Mapping[int, Fraction] | None = None
) -> dict[int, Allowed]:
    """The allowance of every EP size in `worsts`, which holds the worst imbalance over policies, exact.

    `floors` holds the largest floor of an EP size, where there is one.
    """
    raws = {(0, ep): headroom_bound(worst, floor=(floors or {}).get(ep, Fraction(1))) for ep, worst in worsts.items()}
    return {ep: one for (_, ep), one in stepped(raws, num_experts=num_experts, top_k=top_k).items()}


def headroom_bound(worst: Fraction, *, floor: Fraction = Fraction(1)) -> Raw:
    """The larger of the core and the floor; `binds` is `core` or `floor`."""
    core = 1 + Fraction(HEADROOM) * (worst - 1)
    return Raw(value=floor, binds="floor") if floor > core else Raw(value=core, binds="core")
