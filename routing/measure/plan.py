"""Which forward passes there are, and which part each belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routing.core.segments import PrefixTree

TokenIds = npt.NDArray[np.int32]  # of one trajectory

# What a killed run loses at most, about; small against a run, large against a batch.
TOKENS_PER_PART = 131_072


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One trajectory to run through the policy, for the segments that no earlier trajectory brings.

    The first `start` tokens come from a cache. Others before `first_segment` are computed for their context and not counted
    again; nothing is counted where it lies beyond `last_segment`. `num_tokens` is the length from the first token on.
    """

    trajectory: int
    num_tokens: int
    first_segment: int
    last_segment: int
    start: int = 0

    @property
    def num_new(self) -> int:
        """Tokens to compute."""
        return self.num_tokens - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class PartPlan:
    """The passes whose loads make one part; its segments are `first_segment` to `last_segment`, both included."""

    index: int
    passes: tuple[Pass, ...]

    @property
    def first_segment(self) -> int:
        return self.passes[0].first_segment

    @property
    def last_segment(self) -> int:
        return self.passes[-1].last_segment

    @property
    def num_tokens(self) -> int:
        """Tokens to compute where every trajectory is computed whole, context included."""
        return sum(one.num_tokens for one in self.passes)


def plan_parts(tree: PrefixTree, *, tokens_per_part: int) -> tuple[PartPlan, ...]:
    """Every segment in exactly one part, in the order of segment ids; the same for the same tree.

    A trajectory that ends inside another needs no pass: depth first, the next one goes through all its segments.
    """
    inner = {segment.parent_segment_id for segment in tree.segments}
    parts: list[PartPlan] = []
    passes: list[Pass] = []
    brought = 0
    for trajectory in tree.visit_order:
        path = tree.paths[trajectory]
        if path[-1] in inner:
            continue
        num_tokens = tree.segments[path[-1]].end_position
        passes.append(Pass(trajectory=trajectory, num_tokens=num_tokens, first_segment=brought, last_segment=path[-1]))
        brought = path[-1] + 1
        if sum(one.num_tokens for one in passes) >= tokens_per_part:
            parts.append(PartPlan(index=len(parts), passes=tuple(passes)))
            passes = []
    if passes:
        parts.append(PartPlan(index=len(parts), passes=tuple(passes)))
    return tuple(parts)


def deal_parts(parts: Sequence[PartPlan], *, worker: int, num_workers: int) -> tuple[PartPlan, ...]:
    """The parts of one worker: neighbours, about an equal share of the tokens; each part is exactly one worker's.

    A part belongs to the worker in whose share of the tokens its middle lies: no worker has more than its even share and
    one part. Workers that deal the same parts agree; those that come later, when fewer are missing, need not.
    """
    total = sum(part.num_tokens for part in parts)
    before = 0
    dealt = []
    for part in parts:
        if (2 * before + part.num_tokens) * num_workers // (2 * total) == worker:
            dealt.append(part)
        before += part.num_tokens
    return tuple(dealt)
