"""How many tokens a forward pass may hold: found from the memory that is free, and halved where that did not suffice.

B rows of a batch, T positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from routing.core.errors import InputError
from routing.measure.device import cuda_free_bytes, cuda_peak
from routing.measure.plan import TOKENS_PER_PART, Pass, TokenIds
from routing.measure.policy import LoadedPolicy
from routing.store.settings import BatchMemory

# Padded tokens in one forward pass of a CPU, which gains nothing from more.
CPU_TOKENS_PER_BATCH = 16_384
TRIED_ROWS, TRIED_TOKENS = 8, 1_024
# Of the free memory; the rest is for caches that are held and repeated, for rows that gather at one expert, and for gaps.
_SHARE_FOR_PASSES = 0.5
_LEAST_TOKENS = 1_024


@dataclass(kw_only=True, slots=True)
class Budget:
    """Padded tokens a batch may hold; halved when the device runs out of memory."""

    tokens_per_batch: int
    halvings: int = 0

    def fits(self, attempt: Callable[[], object], batch: Sequence[Pass], device: torch.device) -> bool:
        """Whether memory sufficed; where it didn't, the budget is halved. InputError where the batch was one trajectory."""
        try:
            attempt()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(batch)
        else:
            return True
        if device.type == "cuda":  # outside the handler, whose traceback still holds the failed batch's tensors
            torch.cuda.empty_cache()
        return False

    def _halve(self, batch: Sequence[Pass]) -> None:
        if len(batch) == 1:
            raise InputError(
                f"out of memory on one trajectory of {batch[0].num_tokens} tokens alone; use a larger device, or another --dtype"
            )
        self.tokens_per_batch = len(batch) * batch[0].num_new // 2
        self.halvings += 1


def is_out_of_memory(error: Exception) -> bool:
    """Of the device or the host; PyTorch's CPU allocator has no exception class of its own."""
    return (
        isinstance(error, torch.OutOfMemoryError | MemoryError)
        or "not enough memory" in str(error)
        or "can't allocate memory" in str(error)
    )


def tokens_that_fit(memory: BatchMemory) -> int:
    """Padded tokens of one pass, a multiple of 1,024; no more than a part has."""
    tokens = int(memory.free_bytes * _SHARE_FOR_PASSES) // memory.bytes_per_token
    return min(max(tokens // _LEAST_TOKENS, 1) * _LEAST_TOKENS, TOKENS_PER_PART)


def find_batch_memory(policy: LoadedPolicy, sequences: Sequence[TokenIds]) -> BatchMemory:
    """What is free on a GPU, and what a pass over the corpus's first tokens takes at most, fewer where memory is short."""
    stream = np.concatenate(sequences[:TRIED_ROWS]).astype(np.int64)
    ids_BT = torch.from_numpy(np.resize(stream, (TRIED_ROWS, TRIED_TOKENS))).to(policy.device)
    row = Pass(trajectory=0, num_tokens=TRIED_TOKENS, first_segment=0, last_segment=0)
    budget = Budget(tokens_per_batch=ids_BT.numel())

    def run() -> None:
        with torch.inference_mode():
            policy.model(input_ids=ids_BT, use_cache=False)

    while not budget.fits(run, [row] * len(ids_BT), policy.device):  # the pass that loads the kernels, too
        ids_BT = ids_BT[: budget.tokens_per_batch // TRIED_TOKENS]
    return BatchMemory(free_bytes=cuda_free_bytes(policy.device), bytes_per_token=-(-cuda_peak(run) // ids_BT.numel()))
