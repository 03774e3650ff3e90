"""Which expert-parallel rank owns which expert: contiguous blocks, the placement that every number here assumes.

Rank r of n owns the E/n experts from r * E/n. Other placements change imbalances; a figure without a placement means this one.
"""

from routing.core.errors import InputError

PLACEMENT = "contiguous"
DEFAULT_EP_SIZES = (2, 4, 8)


def valid_ep_sizes(num_experts: int) -> tuple[int, ...]:
    """Every EP size above 1 that divides the experts."""
    return tuple(n for n in range(2, num_experts + 1) if num_experts % n == 0)


def require_ep_size(ep: int, num_experts: int, *, name: str = "--ep") -> int:
    """`ep`, or InputError where it doesn't divide the experts.

    `expert // (num_experts // ep)` is silently wrong where ep does not divide: extra ranks appear, or experts vanish.
    """
    if ep not in valid_ep_sizes(num_experts):
        known = ", ".join(str(n) for n in valid_ep_sizes(num_experts))
        why = "imbalance at EP 1 is exactly 1.0" if ep == 1 else f"it does not divide {num_experts} experts"
        raise InputError(f"{name}: {ep} is refused, {why}; valid sizes: {known}")
    return ep


def default_ep_sizes(num_experts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(those of 2, 4, 8 that divide the experts, those that don't)."""
    fitting = tuple(n for n in DEFAULT_EP_SIZES if num_experts % n == 0)
    return fitting, tuple(n for n in DEFAULT_EP_SIZES if num_experts % n)
