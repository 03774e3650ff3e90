"""Statistic dumps of serving engines: SGLang's expert distribution recorder, TensorRT-LLM's expert statistics.

SGLang, `stat` mode: a torch file `expert_distribution_recorder_*.pt` holding {"rank", "logical_count"}, the count int [steps,
layers, experts] summed over ranks, one step a forward pass. TensorRT-LLM: a folder (EXPERT_STATISTIC_PATH) of `meta_info.json`
and `rank*.safetensors`, a count int [experts] under "{iteration}_{layer}" from each rank. Source: both projects' own code.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.errors import CheckFailedError, InputError
from routing.recorded.arrays import Arrays, read_safetensors
from routing.recorded.counts import MAX_ROWS, UnitCounts, require_distinct_layers

META = "meta_info.json"
_KEY = re.compile(r"([0-9]{1,9})_([0-9]{1,6})")

Integers = npt.NDArray[np.int64]


def read_sglang(path: Path, *, name: str) -> Integers:
    """`logical_count` [steps, layers, experts]. Loaded as tensors and plain values only: a pickle with more is refused."""
    import pickle

    import torch

    try:
        dumped = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, AttributeError):
        raise InputError(
            f"{name}: a pickle of more than tensors, or none at all; such could run code and is not loaded: dump in `stat` mode"
        ) from None
    count = dumped.get("logical_count") if isinstance(dumped, Mapping) else None
    if not isinstance(count, torch.Tensor) or count.ndim != 3 or count.is_floating_point():
        raise InputError(f"{name}: no integer logical_count [steps, layers, experts]; dump SGLang's recorder in `stat` mode")
    found: Integers = count.to(torch.int64).numpy()
    return found


def read_trtllm(folder: Path, *, name: str) -> tuple[Integers, tuple[int, ...], int]:
    """(counts [iterations, layers, experts] summed over ranks, the layers, top-k); InputError, CheckFailedError.

    Ranks that all counted the same tokens (no attention data parallelism) hold equal counts, which are not summed.
    """
    meta = _meta(folder, name)
    ranks = [read_safetensors(path, name=f"{name}/{path.name}") for path in sorted(folder.glob("rank*.safetensors"))]
    if not ranks:
        raise InputError(f"{name}: no rank*.safetensors beside {META}")
    if len(ranks) > 1 and all(_are_equal(ranks[0], other) for other in ranks[1:]):
        raise CheckFailedError(
            f"{name}: all {len(ranks)} ranks hold the same counts, each counted every token; leave one rank's file there"
        )
    keys = sorted({key for rank in ranks for key in rank})
    places = [match for key in keys if (match := _KEY.fullmatch(key))]
    if len(places) != len(keys):
        raise InputError(f"{name}: {next(key for key in keys if not _KEY.fullmatch(key))[:40]!a} is no iteration_layer")
    iterations, layers = (sorted({int(match[group]) for match in places}) for group in (1, 2))
    counts = np.zeros((len(iterations), len(layers), meta["num_experts"]), dtype=np.int64)
    for match in places:
        slot = counts[iterations.index(int(match[1])), layers.index(int(match[2]))]
        for rank in ranks:
            if match[0] in rank:
                slot += _one_count(rank[match[0]], meta["num_experts"], f"{name}: {match[0]}")
    return counts, tuple(layers), meta["num_experts_per_token"]


def _meta(folder: Path, name: str) -> dict[str, int]:
    try:
        meta = json.loads((folder / META).read_text())
        return {key: int(meta[key]) for key in ("num_experts", "num_experts_per_token")}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{name}: no {META} with num_experts and num_experts_per_token; a TensorRT-LLM statistic has one"
        ) from None


def _one_count(count: npt.NDArray[Any], num_experts: int, where: str) -> Integers:
    if count.shape != (num_experts,) or count.dtype.kind not in "iu":
        raise InputError(f"{where}: {count.dtype} {list(count.shape)}, not whole numbers of {num_experts} experts")
    return count.astype(np.int64)


def _are_equal(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def step_units(
    counts_ULE: Integers, layers: tuple[int, ...], *, top_k: int, name: str, repairs: Counter[str]
) -> tuple[tuple[int, ...], tuple[UnitCounts, ...]]:
    """(layers with counts, one unit a step), its tokens from the rows themselves: a dump does not say how many there were.

    Dense layers, without a row in any step, are left out and counted, as are steps without any. CheckFailedError where the
    layers of a step don't agree on its tokens.
    """
    held_L: npt.NDArray[np.bool_] = np.any(counts_ULE != 0, axis=(0, 2))
    busy_U: npt.NDArray[np.bool_] = np.any(counts_ULE != 0, axis=(1, 2))
    if not held_L.any():
        raise CheckFailedError(f"{name}: every count is zero: nothing was recorded")
    repairs["dense_layers_dropped"] += int((~held_L).sum())
    repairs["empty_units_dropped"] += int((~busy_U).sum())
    kept = tuple(layer for layer, is_held in zip(layers, held_L, strict=True) if is_held)
    units = []
    for step in np.flatnonzero(busy_U):
        loads_LE = counts_ULE[step][held_L]
        units.append(_step_unit(loads_LE, kept, int(step), top_k=top_k, name=name))
    require_distinct_layers(units, kept, top_k=top_k)
    return kept, tuple(units)


def _step_unit(loads_LE: Integers, layers: tuple[int, ...], step: int, *, top_k: int, name: str) -> UnitCounts:
    rows_L = loads_LE.sum(-1)
    num_tokens, rest = divmod(int(rows_L[0]), top_k)
    odd = np.flatnonzero((rows_L != rows_L[0]) | (loads_LE > num_tokens).any(-1) | (loads_LE < 0).any(-1))
    if rest or len(odd):
        place = int(odd[0]) if len(odd) else 0
        raise CheckFailedError(
            f"{name}: step {step}, layer {layers[place]}: {rows_L[place]} routed rows, layer {layers[0]} has {rows_L[0]}; every "
            f"layer must have top-{top_k} rows of the same tokens, at most one of a token in an expert"
        )
    if num_tokens > MAX_ROWS:
        raise InputError(f"{name}: step {step}: {num_tokens} tokens, above {MAX_ROWS}")
    return UnitCounts(unit=f"step {step}", num_tokens=num_tokens, loads_LE=loads_LE.astype(np.int32))
