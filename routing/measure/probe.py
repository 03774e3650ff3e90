"""Whether a model's cache can be trusted: ids of passes that go on from it against those of whole sequences, before a run.

N tokens of the probe, L MoE layers, E experts, B rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from routing.core.errors import InputError, RoutingError
from routing.measure.budget import is_out_of_memory
from routing.measure.capture import ExpertCounter
from routing.measure.forward import run_continued
from routing.measure.plan import TokenIds
from routing.measure.policy import LoadedPolicy
from routing.measure.router_faults import RouterError
from routing.store.settings import CacheProbe

_LEAST_TOKENS = 384  # six chunks of 64, in which linear attention works
_WINDOWS = ("sliding_window", "attention_chunk_size", "index_topk")
_BEYOND_WINDOW = 128
# In half precision other shapes round otherwise: padding alone moves some ids. A cache may move as many, twice, or one in 100.
_NOISE_FACTOR, _LEAST_SHARE = 2, 0.01
# What caches without a way to be copied, repeated or gone on from were seen to raise.
_FAULTS = (AttributeError, TypeError, ValueError, RuntimeError, LookupError, AssertionError, RoutingError)


def probe_cache(policy: LoadedPolicy, counter: ExpertCounter, sequences: Sequence[TokenIds]) -> CacheProbe:
    """On the longest sequence's first tokens and another's, in the run's own type: go on, go on from that, with a padded row.

    InputError where the device runs out of memory, which says nothing of the cache.
    """
    texts = sorted(sequences, key=len, reverse=True)
    num_tokens = min(len(texts[0]), _num_tokens(policy))
    first_N = torch.from_numpy(texts[0][:num_tokens].astype("int64"))
    # The second goes on from more tokens than it has, in blocks; the first again from 3/5 of it, padded.
    cuts = (num_tokens * 3 // 8, num_tokens * 5 // 8)
    other_N = torch.cat([first_N[: cuts[1]], torch.from_numpy(texts[-1].astype("int64"))[: (num_tokens - cuts[1]) // 2]])
    if cuts[0] == 0 or policy.cache_keyword is None:
        return _failed("no cache to go on from, or too few tokens")
    try:
        whole_NLE = _counts(policy, counter, [first_N])
        padded_NLE = _counts(policy, counter, [first_N, other_N])[:num_tokens]
        other_NLE = _counts(policy, counter, [other_N])
        went_on = _went_on(policy, counter, first_N, other_N, cuts)
    except RouterError:  # its segments are this probe's tokens; the run itself finds the trajectory, and says which
        return _failed("a router gave nothing to choose by to some of the tokens it was tried on")
    except (*_FAULTS, MemoryError) as error:
        if is_out_of_memory(error):
            raise InputError(
                f"out of memory on {num_tokens} tokens and their cache, before the run; use a larger device, or another --dtype"
            ) from error
        return _failed(f"{type(error).__name__}: {' '.join(str(error).split())[:80]}")
    expected = (whole_NLE, whole_NLE, other_NLE)
    return CacheProbe(
        num_ids=int(whole_NLE.sum()),
        cache_differs=max(_differing(*pair) for pair in zip(expected, went_on, strict=True)),
        padding_differs=_differing(whole_NLE, padded_NLE),
        fault=None,
    )


def _failed(why: str) -> CacheProbe:
    return CacheProbe(num_ids=0, cache_differs=0, padding_differs=0, fault=why)


def is_trusted(probe: CacheProbe, dtype: torch.dtype) -> bool:
    """In float32 no id may differ; in half precision one in 100, or twice as many as padding alone moves."""
    if probe.fault is not None:
        return False
    allowed = 0.0 if dtype == torch.float32 else max(_LEAST_SHARE * probe.num_ids, _NOISE_FACTOR * probe.padding_differs)
    return probe.cache_differs <= allowed


def said_of(probe: CacheProbe) -> str:
    """Why a cache isn't trusted, for a line on stderr."""
    return probe.fault or f"{probe.cache_differs:,} of {probe.num_ids:,} expert ids differ from whole sequences'"


def _num_tokens(policy: LoadedPolicy) -> int:
    """Beyond every window that the configuration names, so that what a cache forgets is seen."""
    config: Any = policy.model.config
    windows = [value for name in _WINDOWS if isinstance(value := getattr(config, name, None), int)]
    return max([_LEAST_TOKENS, *(window + _BEYOND_WINDOW for window in windows)])


def _went_on(
    policy: LoadedPolicy, counter: ExpertCounter, first_N: Tensor, other_N: Tensor, cuts: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts [N, L, E]: of the first text over two caches, again from the first cache after use, and of the other beside it."""
    low, high = cuts
    head_NLE, after_low = _continue(policy, counter, [first_N[:low]], None, num_cached=0)
    middle_NLE, after_high = _continue(policy, counter, [first_N[low:high]], after_low, num_cached=low)
    both_NLE, _ = _continue(policy, counter, [first_N[high:], other_N[high:]], after_high, num_cached=high)
    again_NLE, _ = _continue(policy, counter, [first_N[low:]], after_low, num_cached=low)
    tail_NLE, other_tail_NLE = both_NLE[: len(first_N) - high], both_NLE[len(first_N) - high :]
    path_NLE = torch.cat([head_NLE, middle_NLE])
    return torch.cat([path_NLE, tail_NLE]), torch.cat([head_NLE, again_NLE]), torch.cat([path_NLE, other_tail_NLE])


def _counts(policy: LoadedPolicy, counter: ExpertCounter, texts: Sequence[Tensor]) -> Tensor:
    """Rows of each token [N, L, E], texts one after the other, computed whole."""
    ids_BT, slot_BT, num = _padded(policy, texts)
    counter.begin(slot_BT.flatten(), segment_ids=range(num))
    with torch.inference_mode():
        policy.model(input_ids=ids_BT, use_cache=False)
        return counter.collect()


def _continue(
    policy: LoadedPolicy, counter: ExpertCounter, texts: Sequence[Tensor], before: Any, *, num_cached: int
) -> tuple[Tensor, Any]:
    ids_BT, slot_BT, num = _padded(policy, texts)
    lengths = [len(text) for text in texts]
    return run_continued(policy, counter, range(num), ids_BT, slot_BT, lengths, before, num_cached=num_cached)


def _padded(policy: LoadedPolicy, texts: Sequence[Tensor]) -> tuple[Tensor, Tensor, int]:
    """(ids [B, T], a slot of its own for each token [B, T], their number); padding lies one slot beyond."""
    num_tokens, longest = sum(map(len, texts)), max(map(len, texts))
    ids_BT = torch.zeros((len(texts), longest), dtype=torch.long)
    slot_BT = torch.full((len(texts), longest), num_tokens)
    first_slot = 0
    for row, text in enumerate(texts):
        ids_BT[row, : len(text)] = text
        slot_BT[row, : len(text)] = torch.arange(first_slot, first_slot + len(text))
        first_slot += len(text)
    return ids_BT.to(policy.device), slot_BT.to(policy.device), num_tokens


def _differing(left_NLE: Tensor, right_NLE: Tensor) -> int:
    """Expert ids of one that the other has not."""
    return int((left_NLE != right_NLE).sum()) // 2
