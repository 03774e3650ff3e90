"""Forward-only passes over a part's trajectories, counting the segments that the part brings.

B rows of a padded batch, T positions, S segments of the part, L MoE layers, E experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from routing.core.errors import InputError
from routing.core.segments import PrefixTree
from routing.measure.capture import ExpertCounter
from routing.measure.plan import PartPlan, Pass, by_length, next_batch
from routing.measure.policy import LoadedPolicy
from routing.store.loads import require_conserved

TokenIds = npt.NDArray[np.int32]

# Padded tokens in one forward pass, to start with. The CPU gains nothing from more; a GPU wants its matrices full.
TOKENS_PER_BATCH = {"cpu": 16_384, "cuda": 65_536}


@dataclass(kw_only=True, slots=True)
class Budget:
    """Padded tokens a batch may hold; halved when the device runs out of memory."""

    tokens_per_batch: int
    halvings: int = field(default=0)

    def halve(self, batch: Sequence[Pass]) -> None:
        """For the batch that just failed; InputError where it was a single trajectory."""
        if len(batch) == 1:
            raise InputError(
                f"out of memory on one trajectory of {batch[0].num_tokens} tokens alone; use a larger device, or another --dtype"
            )
        self.tokens_per_batch = len(batch) * batch[0].num_tokens // 2
        self.halvings += 1


def measure_part(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    part: PartPlan,
    tree: PrefixTree,
    sequences: Sequence[TokenIds],
    budget: Budget,
    *,
    on_tokens: Callable[[int], None] = lambda _tokens: None,
) -> Tensor:
    """Routed rows [S, L, E] int32 of the part's segments, checked; `on_tokens` hears the computed tokens of each batch."""
    num_segments = part.last_segment - part.first_segment + 1
    loads_SLE = torch.zeros((num_segments, len(policy.experts), counter.num_experts), dtype=torch.int32)
    queue = by_length(part.passes)
    while queue:
        batch = next_batch(queue, tokens_per_batch=budget.tokens_per_batch)
        try:
            segment_ids, counts_SLE = _run_batch(policy, counter, batch, tree, sequences)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            budget.halve(batch)
        else:
            loads_SLE[torch.tensor(segment_ids) - part.first_segment] = counts_SLE
            queue = queue[len(batch) :]
            on_tokens(sum(one.num_tokens for one in batch))
            continue
        if policy.device.type == "cuda":  # outside the handler, whose traceback still holds the failed batch's tensors
            torch.cuda.empty_cache()
    first, last = part.first_segment, part.last_segment
    tokens_S = np.array([segment.num_tokens for segment in tree.segments[first : last + 1]], dtype=np.int64)
    layers = [experts.layer for experts in policy.experts]
    require_conserved(loads_SLE.numpy(), tokens_S, first_segment=first, top_k=policy.top_k, layers=layers)
    return loads_SLE


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU allocator has no exception class of its own.
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or "not enough memory" in str(error)
        or "can't allocate memory" in str(error)
    )


def _run_batch(
    policy: LoadedPolicy, counter: ExpertCounter, batch: Sequence[Pass], tree: PrefixTree, sequences: Sequence[TokenIds]
) -> tuple[list[int], Tensor]:
    segment_ids, ids_BT, slot_BT = batch_tensors(batch, tree, sequences)
    ids_BT, slot_BT = (_to_device(tensor, policy.device) for tensor in (ids_BT, slot_BT))
    counter.begin(slot_BT.flatten(), segment_ids=segment_ids)
    with torch.inference_mode():
        # No attention mask: rows are padded on the right, and nothing a causal layer computes at a token depends on later
        # ones. A mask would cost SDPA its fast path and a T x T tensor.
        policy.model(input_ids=ids_BT, use_cache=False)
        return segment_ids, counter.collect()


def batch_tensors(batch: Sequence[Pass], tree: PrefixTree, sequences: Sequence[TokenIds]) -> tuple[list[int], Tensor, Tensor]:
    """(segment ids by slot, token ids [B, T] padded on the right with 0, each token's slot [B, T]).

    The slot of context and padding is the number of segments, one beyond the last.
    """
    segment_ids = [segment for one in batch for segment in range(one.first_segment, one.last_segment + 1)]
    longest = max(one.num_tokens for one in batch)
    ids_BT = np.zeros((len(batch), longest), dtype=np.int64)
    slot_BT = np.full((len(batch), longest), len(segment_ids), dtype=np.int64)
    slot = 0
    for row, one in enumerate(batch):
        ids_BT[row, : one.num_tokens] = sequences[one.trajectory][: one.num_tokens]
        for segment_id in range(one.first_segment, one.last_segment + 1):
            segment = tree.segments[segment_id]
            slot_BT[row, segment.first_position : segment.end_position] = slot
            slot += 1
    return segment_ids, torch.from_numpy(ids_BT), torch.from_numpy(slot_BT)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
