"""From raw bounds to allowances: rounding up, and the facts that need no statistics.

    allowance(B, n) = ceil to 0.1 of raw(B, n), at least the allowance of every divisor of n and of every larger B,
                      at most min(n, E / k)

A layer's is moreover at most that of all layers, which covers every layer. All arithmetic is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from routing.core.allowance import ALLOWANCE_GRID, ceil_to, proven_ceiling

Place = tuple[int, int]  # (batch tokens, EP size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Raw:
    """A bound before any step, and what it is."""

    value: Fraction
    binds: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """One allowance and what made it; `binds` is the raw bound's, `ep=N`, `batch_tokens=N`, `ceiling` or `all layers`."""

    allowance: Decimal
    raw_bound: Fraction
    ceiling: Decimal
    ceiling_reason: str
    binds: str


def stepped(raws: Mapping[Place, Raw], *, num_experts: int, top_k: int) -> dict[Place, Allowed]:
    """The allowance of every place that has a bound."""
    found: dict[Place, Allowed] = {}
    for size, ep in sorted(raws, key=lambda place: (-place[0], place[1])):
        raw = raws[size, ep]
        allowance, binds = ceil_to(raw.value, ALLOWANCE_GRID), raw.binds
        for (other_size, other_ep), other in found.items():
            is_divisor = other_size == size and ep % other_ep == 0
            if (is_divisor or other_ep == ep) and other.allowance > allowance:
                allowance, binds = other.allowance, f"ep={other_ep}" if is_divisor else f"batch_tokens={other_size}"
        ceiling, reason = proven_ceiling(ep, num_experts=num_experts, top_k=top_k)
        if allowance > ceiling:
            allowance, binds = ceiling, "ceiling"
        found[size, ep] = Allowed(allowance=allowance, raw_bound=raw.value, ceiling=ceiling, ceiling_reason=reason, binds=binds)
    return found


def within(layer: Mapping[Place, Allowed], of_all: Mapping[Place, Allowed]) -> dict[Place, Allowed]:
    """A layer's allowances, none above that of all layers."""
    return {
        place: replace(one, allowance=of_all[place].allowance, binds="all layers")
        if one.allowance > of_all[place].allowance
        else one
        for place, one in layer.items()
    }
