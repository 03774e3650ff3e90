"""An allowance in the units of stacks that size their buffers by a factor of their own.

Every one of them holds the rows that a rank receives, allowance x tokens x k / EP where the EP group dispatches `tokens`. T are
the tokens of one rank, the same on every rank; E experts, k top-k, n EP size.

    megatron-core   moe_expert_rank_capacity_factor: rows = T k factor                      factor = allowance
    torchtitan      non_blocking_capacity_factor: rows = T n min(E/n, k) factor, up to 1    factor = allowance k / (n min(E/n, k))
    automodel       dispatcher_capacity_factor: rows = factor x the busiest rank of one calibration dispatch, which is never
                    below the even share                                                    factor = allowance at most

Sources, read and not run: Megatron-LM megatron/core/transformer/moe/token_dispatcher.py (_HybridEPManager.setup_metadata),
torchtitan torchtitan/models/common/token_dispatcher.py (HybridEPTokenDispatcher.Config), Automodel pull request 3931 (open).
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from routing.core.allowance import ceil_to

FACTOR_GRID = Decimal("0.0001")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The factor of one stack, rounded up to 1e-4: its option, how it is set, and what a reader must know."""

    stack: str
    option: str
    factor: Decimal
    setting: str
    notes: tuple[str, ...]


def megatron_core(allowance: Decimal, *, ep: int, num_experts: int, top_k: int) -> Capacity:
    """Rows of each rank's own T tokens: the allowance as it is."""
    factor = ceil_to(Fraction(allowance), FACTOR_GRID)
    return Capacity(
        stack="megatron-core",
        option="moe_expert_rank_capacity_factor",
        factor=factor,
        setting=f"--moe-expert-rank-capacity-factor {factor.normalize():f}",
        notes=(
            "a rank's rows are counted from its own tokens: with unequal ranks multiply by mean tokens / fewest tokens of a rank",
            "rows are rounded up to the quantization's alignment, experts that are padded to it need room beside the allowance",
        ),
    )


def torchtitan(allowance: Decimal, *, ep: int, num_experts: int, top_k: int) -> Capacity:
    """A share of the worst case, 1 being every token on every local expert."""
    worst = ep * min(num_experts // ep, top_k)
    factor = min(Decimal(1), ceil_to(Fraction(allowance) * top_k / worst, FACTOR_GRID))
    return Capacity(
        stack="torchtitan",
        option="non_blocking_capacity_factor",
        factor=factor,
        setting=f"HybridEPTokenDispatcher.Config(non_blocking_capacity_factor={factor.normalize():f})",
        notes=(
            f"1.0 is the worst case, {worst} rows a token of one rank; the even share is {top_k}",
            "rows above it are dropped without an error; pad_multiple needs up to pad_multiple - 1 rows a local expert beside it",
        ),
    )


def automodel(allowance: Decimal, *, ep: int, num_experts: int, top_k: int) -> Capacity:
    """A multiple of what one dispatch showed: dividing by that dispatch's own imbalance would be exact, 1 is its least."""
    factor = ceil_to(Fraction(allowance), FACTOR_GRID)
    return Capacity(
        stack="automodel",
        option="dispatcher_capacity_factor",
        factor=factor,
        setting=f"BackendConfig(dispatcher='hybridep', dispatcher_capacity_factor={factor.normalize():f})",
        notes=(
            "relative to the busiest rank of the calibration dispatch: divide by that dispatch's imbalance, or stay with this",
            "the calibration dispatch must have as many tokens as any later one; an open pull request (3931), not a release",
        ),
    )


STACKS = {"automodel": automodel, "megatron-core": megatron_core, "torchtitan": torchtitan}
