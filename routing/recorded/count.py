"""Recorded routes counted by segment of the prefix tree: S segments, T tokens, L layers, K experts a token, E experts."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from routing.core.segments import PrefixTree, Segment
from routing.recorded.faults import Routes
from routing.recorded.routes import Recorded

Providers = tuple[tuple[int, ...], ...]


def providers(tree: PrefixTree, recorded: Sequence[Recorded]) -> Providers:
    """For each segment the trajectories, in order, that hold routes for all of its tokens."""
    found: list[list[int]] = [[] for _ in tree.segments]
    for trajectory, path in enumerate(tree.paths):
        for segment_id in path:
            if tree.segments[segment_id].first_position >= recorded[trajectory].first:
                found[segment_id].append(trajectory)
    return tuple(map(tuple, found))


def uncovered(tree: PrefixTree, providing: Providers) -> tuple[int, ...]:
    """Trajectories with a segment that nobody recorded in full."""
    return tuple(
        trajectory for trajectory, path in enumerate(tree.paths) if any(not providing[segment_id] for segment_id in path)
    )


def counted(
    tree: PrefixTree,
    recorded: Sequence[Recorded],
    providing: Providers,
    *,
    segments: range,
    num_experts: int,
    repairs: Counter[str],
) -> npt.NDArray[np.int32]:
    """Routed rows [S, L, E] of `segments`, from the first trajectory that holds each.

    Tokens that a later one routed otherwise (near-ties fall with the batch) are added to `repairs` as shared_tokens_differ.
    """
    num_layers = recorded[0].routes.shape[1]
    loads_SLE = np.zeros((len(segments), num_layers, num_experts), dtype=np.int32)
    offset_L1 = np.arange(num_layers, dtype=np.int64)[:, None] * num_experts
    for slot, segment_id in enumerate(segments):
        segment = tree.segments[segment_id]
        first, *others = (_slice(recorded[trajectory], segment) for trajectory in providing[segment_id])
        cells = np.bincount((first.astype(np.int64) + offset_L1).ravel(), minlength=num_layers * num_experts)
        loads_SLE[slot] = cells.reshape(num_layers, num_experts)
        if others:
            kept = np.sort(first, axis=-1)
            repairs["shared_tokens_differ"] += sum(int((np.sort(one, axis=-1) != kept).any((1, 2)).sum()) for one in others)
    return loads_SLE


def _slice(one: Recorded, segment: Segment) -> Routes:
    start = segment.first_position - one.first
    return one.routes[start : start + segment.num_tokens]
