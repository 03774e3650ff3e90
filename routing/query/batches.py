"""Trajectories cut into batches.

A batch is a run of consecutive steps, a step being one (trajectory, position); the step that reaches the size closes it, and
a trajectory may go on in the next batch. `packed` counts every distinct segment of a batch once, as training dispatches it
after prefix sharing; `logical` counts every trajectory in full.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routing.core.batches import require_view
from routing.core.errors import InputError

CORPUS_ORDER = "corpus"

Integers = npt.NDArray[np.int64]
Order = str | int


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Every (trajectory, position) in the order asked for; the three arrays are of one length."""

    trajectory_ids: Integers
    segment_ids: Integers
    num_tokens: Integers


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """The full batches of one size; `batch`, `segment_id` and `copies` are columns of one table, sorted by the first two.

    `num_tokens` are those of full batches in the view asked for, `dropped_tokens` those of the last batch if it stayed below
    the size. `ends` are one past the last step of every full batch, in the order of the steps.
    """

    batch_tokens: int
    num_batches: int
    num_tokens: int
    dropped_tokens: int
    ends: tuple[int, ...]
    batch: Integers
    segment_id: Integers
    copies: Integers

    @property
    def num_steps(self) -> int:
        """How many steps the full batches hold."""
        return self.ends[-1] if self.ends else 0


def rank_trajectories(trajectory_hashes: Sequence[str], order: Order) -> Integers:
    """Each trajectory's place: its own in the corpus, or that by sha256 of `SEED:TRAJECTORY_HASH`."""
    if order == CORPUS_ORDER:
        return np.arange(len(trajectory_hashes), dtype=np.int64)
    if not isinstance(order, int) or isinstance(order, bool):
        raise InputError(f"--order: {order!r} is neither {CORPUS_ORDER!r} nor a whole number")
    keys = [hashlib.sha256(f"{order}:{name}".encode()).digest() for name in trajectory_hashes]
    ranks = np.empty(len(keys), dtype=np.int64)
    ranks[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return ranks


def order_steps(steps: Steps, rank: Integers) -> Steps:
    """`steps` with the trajectories in the order of `rank`, which is indexed by trajectory id, each as it was within."""
    rows = np.argsort(rank[steps.trajectory_ids], kind="stable")
    return Steps(
        trajectory_ids=steps.trajectory_ids[rows], segment_ids=steps.segment_ids[rows], num_tokens=steps.num_tokens[rows]
    )


def cut_batches(steps: Steps, *, batch_tokens: int, view: str) -> Batches:
    """Batches of at least `batch_tokens` tokens of the view; the last one below the size is dropped and counted."""
    require_view(view)
    if batch_tokens < 1:
        raise InputError(f"--batch-tokens: {batch_tokens} is not positive")
    ends, num_tokens, dropped_tokens = _ends(steps, batch_tokens, is_packed=view == "packed")
    num_steps = ends[-1] if ends else 0
    lengths = np.array(ends, dtype=np.int64) - np.array([0, *ends[:-1]], dtype=np.int64)[: len(ends)]
    batch_of_step = np.repeat(np.arange(len(ends), dtype=np.int64), lengths)
    num_segments = int(steps.segment_ids.max(initial=-1)) + 1
    keys, copies = np.unique(batch_of_step * num_segments + steps.segment_ids[:num_steps], return_counts=True)
    return Batches(
        batch_tokens=batch_tokens,
        num_batches=len(ends),
        num_tokens=num_tokens,
        dropped_tokens=dropped_tokens,
        ends=tuple(ends),
        batch=keys // max(1, num_segments),
        segment_id=keys % max(1, num_segments),
        copies=np.ones_like(copies) if view == "packed" else copies,
    )


def _ends(steps: Steps, batch_tokens: int, *, is_packed: bool) -> tuple[list[int], int, int]:
    """(one past the last step of every full batch, their tokens, the tokens left over)."""
    segments = steps.segment_ids.tolist()
    last_batch = [-1] * (max(segments, default=-1) + 1)
    ends: list[int] = []
    full_tokens = open_tokens = 0
    for place, (segment, tokens) in enumerate(zip(segments, steps.num_tokens.tolist(), strict=True), start=1):
        if is_packed:
            if last_batch[segment] == len(ends):
                continue
            last_batch[segment] = len(ends)
        open_tokens += tokens
        if open_tokens >= batch_tokens:
            ends.append(place)
            full_tokens += open_tokens
            open_tokens = 0
    return ends, full_tokens, open_tokens
