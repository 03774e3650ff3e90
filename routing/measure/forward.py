"""Forward-only passes over a part's trajectories, counting the segments that the part brings.

B rows of a padded batch, T positions, S segments of the part, L MoE layers, E experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from routing.core.segments import PrefixTree
from routing.measure.anchors import continued
from routing.measure.batches import PASS_TOKENS, deal_batches
from routing.measure.budget import Budget
from routing.measure.capture import ExpertCounter
from routing.measure.plan import PartPlan, Pass, TokenIds
from routing.measure.policy import LoadedPolicy
from routing.measure.prefixes import HeldCaches, cache_of, for_rows, keep_rows
from routing.store.loads import require_conserved

# Tokens that go on in one pass from a longer cache: with windows SDPA needs a mask of these x all tokens before, for each row.
CHUNK_TOKENS = 2_048


def measure_part(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    part: PartPlan,
    tree: PrefixTree,
    sequences: Sequence[TokenIds],
    budget: Budget,
    *,
    held: HeldCaches | None = None,
    on_tokens: Callable[[int], None] = lambda _tokens: None,
) -> Tensor:
    """Routed rows [S, L, E] int32 of the part's segments, checked; `on_tokens` hears the computed tokens of each batch.

    With `held`, prefixes are computed once and passes go on from their caches; without, every trajectory is computed whole.
    What is held from an earlier part saves time and changes nothing.
    """
    num_segments = part.last_segment - part.first_segment + 1
    loads_SLE = torch.zeros((num_segments, len(policy.experts), counter.num_experts), dtype=torch.int32)

    def run(batch: Sequence[Pass], *, before: Any, keep: bool = False) -> Any:
        segment_ids, counts_SLE, cache = _run_batch(policy, counter, batch, tree, sequences, before, keep=keep)
        loads_SLE[torch.tensor(segment_ids, dtype=torch.long) - part.first_segment] = counts_SLE
        on_tokens(sum(one.num_new for one in batch))
        return cache

    def run_prefix(one: Pass, before: Any) -> Any:
        if one.last_segment < part.first_segment:  # brought, and counted, by an earlier part
            one = replace(one, first_segment=one.last_segment + 1)
        caches: list[Any] = []
        # What doesn't fit raises: it is alone.
        budget.fits(lambda: caches.append(run([one], before=before, keep=True)), [one], policy.device)
        return caches[0]

    if held is not None:
        held.begin_part(part.first_segment)
    groups = [(None, list(part.passes))] if held is None else continued(part, tree, held.anchors)
    for anchor, passes in groups:
        before = most_rows = None
        if held is not None and anchor is not None:
            before = held.get(anchor, run_prefix)
            most_rows = held.most_rows(before)
        _run_in_batches(partial(run, before=before), passes, budget, policy.device, most_rows=most_rows)
    first, last = part.first_segment, part.last_segment
    tokens_S = np.array([segment.num_tokens for segment in tree.segments[first : last + 1]], dtype=np.int64)
    layers = [experts.layer for experts in policy.experts]
    require_conserved(loads_SLE.numpy(), tokens_S, first_segment=first, top_k=policy.top_k, layers=layers)
    return loads_SLE


def _run_in_batches(
    run: Callable[[Sequence[Pass]], object],
    passes: Sequence[Pass],
    budget: Budget,
    device: torch.device,
    *,
    most_rows: int | None,
) -> None:
    """Calls `run` with batches of all `passes`; what is left is dealt anew where memory did not suffice for one."""
    deal = partial(deal_batches, most_rows=most_rows, pass_tokens=PASS_TOKENS[device.type])
    batches = deal(passes, tokens_per_batch=budget.tokens_per_batch)
    while batches:
        if budget.fits(partial(run, batches[0]), batches[0], device):
            batches = batches[1:]
        else:
            left = [one for batch in batches for one in batch]
            batches = deal(left, tokens_per_batch=budget.tokens_per_batch)


def _run_batch(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    batch: Sequence[Pass],
    tree: PrefixTree,
    sequences: Sequence[TokenIds],
    before: Any,
    *,
    keep: bool,
) -> tuple[list[int], Tensor, Any]:
    segment_ids, ids_BT, slot_BT = batch_tensors(batch, tree, sequences)
    ids_BT, slot_BT = (_to_device(tensor, policy.device) for tensor in (ids_BT, slot_BT))
    if before is not None or keep:
        lengths, num_cached = [one.num_new for one in batch], batch[0].start
        return segment_ids, *run_continued(
            policy, counter, segment_ids, ids_BT, slot_BT, lengths, before, num_cached=num_cached
        )
    counter.begin(slot_BT.flatten(), segment_ids=segment_ids)
    with torch.inference_mode():
        # No attention mask: rows are padded on the right, and nothing a causal layer computes at a token depends on later
        # ones. A mask would cost SDPA its fast path and a T x T tensor.
        policy.model(input_ids=ids_BT, use_cache=False)
        return segment_ids, counter.collect(), None


def run_continued(
    policy: LoadedPolicy,
    counter: ExpertCounter,
    segment_ids: Sequence[int],
    ids_BT: Tensor,
    slot_BT: Tensor,
    lengths: Sequence[int],
    before: Any,
    *,
    num_cached: int,
) -> tuple[Tensor, Any]:
    """(counts [S, L, E], the cache after it) of rows, longest first, after `num_cached` tokens of the one-row cache `before`.

    `before` is left as it is. A row leaves the batch after the chunk in which it ends, so that its padding is never gone on
    from; with one row the cache is that of the row's end.
    """
    cache = None if before is None else for_rows(before, len(lengths), policy.device)
    keyword = policy.cache_keyword
    assert keyword is not None
    counts_SLE = torch.zeros((len(segment_ids), len(policy.experts), counter.num_experts), dtype=torch.int32)
    rows_before = len(lengths)
    with torch.inference_mode():
        chunk_tokens = lengths[0] if num_cached <= lengths[0] else CHUNK_TOKENS
        for first in range(0, lengths[0], chunk_tokens):
            num_rows = sum(length > first for length in lengths)
            if num_rows < rows_before:
                keep_rows(cache, num_rows, policy.device)
                rows_before = num_rows
            place = (slice(num_rows), slice(first, first + chunk_tokens))
            counter.begin(slot_BT[place].flatten(), segment_ids=segment_ids)
            cache = cache_of(policy.model(input_ids=ids_BT[place], use_cache=True, **{keyword: cache}))
            counts_SLE += counter.collect()
    return counts_SLE, cache


def batch_tensors(batch: Sequence[Pass], tree: PrefixTree, sequences: Sequence[TokenIds]) -> tuple[list[int], Tensor, Tensor]:
    """(segment ids by slot, token ids [B, T] padded on the right with 0, each token's slot [B, T]), from the batch's `start` on.

    The slot of context and padding is the number of segments, one beyond the last.
    """
    segment_ids = [segment for one in batch for segment in range(one.first_segment, one.last_segment + 1)]
    longest = max(one.num_new for one in batch)
    ids_BT = np.zeros((len(batch), longest), dtype=np.int64)
    slot_BT = np.full((len(batch), longest), len(segment_ids), dtype=np.int64)
    slot = 0
    for row, one in enumerate(batch):
        ids_BT[row, : one.num_new] = sequences[one.trajectory][one.start : one.num_tokens]
        for segment_id in range(one.first_segment, one.last_segment + 1):
            segment = tree.segments[segment_id]
            slot_BT[row, segment.first_position - one.start : segment.end_position - one.start] = slot
            slot += 1
    return segment_ids, torch.from_numpy(ids_BT), torch.from_numpy(slot_BT)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
