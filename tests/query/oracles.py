"""Two other ways to the same numbers, sharing no code with the product: dense NumPy arrays, and Fractions in plain Python."""

import hashlib
from fractions import Fraction

import numpy as np

NULLS = dict.fromkeys(("worst_imbalance", "worst_layer", "worst_batch", "worst_rank", "mean_over_layers", "pooled_over_layers"))


def fraction_answer(world, *, ep, batch_tokens, view, order, only_layer=None):
    """The answer by definition, one (batch, layer, rank) after the other."""
    batches, num_tokens = _batches_by_hand(world, batch_tokens, view, order)
    answer = {"num_batches": len(batches), "num_tokens": num_tokens, **NULLS}
    width = world.num_experts // ep
    best = Fraction(-1)
    for batch, segments in enumerate(batches):
        for layer in world.layers if only_layer is None else [only_layer]:
            ranks = _ranks(world, segments, layer, width)
            for rank, load in enumerate(ranks):
                if Fraction(load * ep, sum(ranks)) > best:
                    best = Fraction(load * ep, sum(ranks))
                    answer |= {"worst_imbalance": float(best), "worst_layer": layer, "worst_batch": batch, "worst_rank": rank}
    if batches:
        by_layer = [_ranks(world, batches[answer["worst_batch"]], layer, width) for layer in world.layers]
        pooled = [sum(column) for column in zip(*by_layer, strict=True)]
        rows = sum(map(sum, by_layer))
        answer["mean_over_layers"] = float(Fraction(ep * sum(map(max, by_layer)), rows))
        answer["pooled_over_layers"] = float(Fraction(ep * max(pooled), rows))
    return answer


def _ranks(world, segments, layer, width):
    experts = [sum(world.loads[segment, layer][expert] for segment in segments) for expert in range(world.num_experts)]
    return [sum(experts[start : start + width]) for start in range(0, world.num_experts, width)]


def _batches_by_hand(world, batch_tokens, view, order):
    """Lists of segments, one mention a copy."""
    trajectories = list(range(len(world.paths)))
    if order != "corpus":
        trajectories.sort(key=lambda place: hashlib.sha256(f"{order}:{world.hashes[place]}".encode()).hexdigest())
    full, open_batch, num_tokens = [], [], 0
    for trajectory in trajectories:
        for segment in world.paths[trajectory]:
            if view == "logical" or segment not in open_batch:
                open_batch.append(segment)
            size = sum(world.segment_tokens[one] for one in open_batch)
            if size >= batch_tokens:
                full.append(open_batch)
                num_tokens += size
                open_batch = []
    return full, num_tokens


def numpy_answer(world, *, ep, batch_tokens, view, order, only_layer=None):
    """The answer from dense arrays: copies_BS @ loads_SLE, reshaped to ranks."""
    copies_BS, num_tokens = _copies(world, batch_tokens, view, order)
    answer = {"num_batches": len(copies_BS), "num_tokens": num_tokens, **NULLS}
    if not len(copies_BS):
        return answer
    loads_SLE = np.array(
        [[world.loads[segment, layer] for layer in world.layers] for segment in range(len(world.segment_tokens))]
    )
    ranks_BLR = np.einsum("bs,sle->ble", copies_BS, loads_SLE).reshape(len(copies_BS), len(world.layers), ep, -1).sum(-1)
    ratios_BLR = ranks_BLR * ep / ranks_BLR.sum(-1, keepdims=True)
    rows = slice(None) if only_layer is None else [world.layers.index(only_layer)]
    batch, layer, rank = np.unravel_index(ratios_BLR[:, rows].argmax(), ratios_BLR[:, rows].shape)
    worst_LR = ranks_BLR[batch]
    return answer | {
        "worst_imbalance": float(ratios_BLR[:, rows].max()),
        "worst_layer": int(np.array(world.layers)[rows][layer]),
        "worst_batch": int(batch),
        "worst_rank": int(rank),
        "mean_over_layers": float(ep * worst_LR.max(-1).sum() / worst_LR.sum()),
        "pooled_over_layers": float(ep * worst_LR.sum(0).max() / worst_LR.sum()),
    }


def _copies(world, batch_tokens, view, order):
    keys = [hashlib.sha256(f"{order}:{name}".encode()).digest() for name in world.hashes]
    places = np.arange(len(keys)) if order == "corpus" else np.array(sorted(range(len(keys)), key=keys.__getitem__))
    steps = np.concatenate([world.paths[place] for place in places])
    tokens = np.array(world.segment_tokens)
    rows, start = [], 0
    total = 0
    for end in range(1, len(steps) + 1):
        row = np.bincount(steps[start:end], minlength=len(tokens))
        row = np.minimum(row, 1) if view == "packed" else row
        if row @ tokens >= batch_tokens:
            rows.append(row)
            total += int(row @ tokens)
            start = end
    return np.array(rows).reshape(len(rows), len(tokens)), total
