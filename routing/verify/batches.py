"""Batches and imbalances a second time: a plain loop cuts, and each batch sums the rows of its segments.

B batches, S segments of the run, L MoE layers, R ranks.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from routing.verify.files import Integers
from routing.verify.finding import Finding, finding
from routing.verify.loads import nested_sizes
from routing.verify.tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The largest imbalance over batches and ranks, busiest_rows x ep / routed_rows; ties go to the first batch, layer, rank."""

    batch: int
    layer: int
    rank: int
    busiest_rows: int
    routed_rows: int


def cut(tree: Tree, *, batch_tokens: int, order: str | int = "corpus") -> list[list[int]]:
    """The segments of every full batch, each once, as training dispatches them."""
    batches: list[list[int]] = []
    held: dict[int, None] = {}
    num_tokens = 0
    for trajectory in _ordered(tree, order):
        for segment in tree.paths[trajectory].tolist():
            if segment in held:
                continue
            held[segment] = None
            num_tokens += int(tree.tokens_S[segment])
            if num_tokens >= batch_tokens:
                batches.append(list(held))
                held, num_tokens = {}, 0
    return batches


def _ordered(tree: Tree, order: str | int) -> list[int]:
    trajectories = list(range(len(tree.paths)))
    if order == "corpus":
        return trajectories
    return sorted(trajectories, key=lambda one: hashlib.sha256(f"{order}:{tree.trajectory_hashes[one]}".encode()).digest())


def batch_ranks(batches: Sequence[Sequence[int]], ranks_SLR: Integers) -> Integers:
    """The rows of every rank in every batch, [B, L, R]."""
    sums = [ranks_SLR[list(segments)].sum(0) for segments in batches]
    return np.array(sums, dtype=np.int64).reshape(len(batches), *ranks_SLR.shape[1:])


def worst(ranks_BLR: Integers, layers: Sequence[int]) -> Worst | None:
    """None where no batch is full."""
    if not ranks_BLR.size:
        return None
    ratios = ranks_BLR * ranks_BLR.shape[-1] / ranks_BLR.sum(-1, keepdims=True)
    batch, layer, rank = (int(place) for place in np.unravel_index(ratios.argmax(), ratios.shape))
    rows_R = ranks_BLR[batch, layer]
    return Worst(batch=batch, layer=layers[layer], rank=rank, busiest_rows=int(rows_R[rank]), routed_rows=int(rows_R.sum()))


def nested_finding(by_ep: Mapping[int, Integers], layers: Sequence[int], *, batch_tokens: int) -> Finding:
    """In every batch and layer, n dividing m: imbalance(n) <= imbalance(m) <= m / n x imbalance(n), as whole numbers."""
    faults, num_checked = [], 0
    for few, many in nested_sizes(by_ep):
        few_BL, many_BL = by_ep[few].max(-1), by_ep[many].max(-1)
        num_checked += few_BL.size
        for batch, place in np.argwhere((few_BL * few > many_BL * many) | (many_BL > few_BL)).tolist():
            rows = f"{few_BL[batch, place]} rows on a rank, EP {many} {many_BL[batch, place]}"
            faults.append(f"batch {batch}, layer {layers[place]}: EP {few} has {rows}")
    return finding(f"nested_imbalance {batch_tokens}", "batches and layers", num_checked, faults)


def imbalance_finding(
    answers: Sequence[Mapping[str, object]], by_ep: Mapping[int, Integers], layers: Sequence[int], *, batch_tokens: int
) -> Finding:
    """The program's own answers, a row an EP size and layer, beside the recount of the same batches; equal to the last bit."""
    faults: list[str] = []
    for answer in answers:
        faults += _differences(answer, by_ep, layers)
    return finding(f"imbalance {batch_tokens}", "answers by EP size and layer", len(answers), faults)


def _differences(answer: Mapping[str, object], by_ep: Mapping[int, Integers], layers: Sequence[int]) -> Iterator[str]:
    ep, layer = int(str(answer["ep"])), int(str(answer["layer"]))
    slot = layers.index(layer)
    found = worst(by_ep[ep][:, slot : slot + 1], [layer])
    mine = {"num_batches": len(by_ep[ep])} | dict.fromkeys(("worst_imbalance", "worst_batch", "worst_rank"))
    if found is not None:
        ratio = found.busiest_rows * ep / found.routed_rows
        mine |= {"worst_imbalance": ratio, "worst_batch": found.batch, "worst_rank": found.rank}
    for name, value in mine.items():
        if answer[name] != value:
            yield f"ep={ep} layer={layer}: {name} {answer[name]} by SQL, {value} by NumPy"
            return
