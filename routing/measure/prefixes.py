"""Caches of shared prefixes: continued without being changed, and held along one path of the prefix tree only.

The model builds its cache itself and finds positions from it. B rows of a batch.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from routing.measure.anchors import Anchor, way_down
from routing.measure.plan import Pass

# Bytes of caches held along a path; above it those between the first and the deepest are dropped and computed again.
# Chosen, not measured on CUDA: beside the half of the free memory that budget.py leaves to caches and gaps.
HELD_BYTES = {"cpu": 1_000_000_000, "cuda": 8_000_000_000}

Compute = Callable[[Pass, Any], Any]


def cache_keyword(model: nn.Module) -> str | None:
    """How `forward` takes a cache: `cache` in transformers 5.24, `past_key_values` before; None where it takes none."""
    names = inspect.signature(type(model).forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def cache_of(outputs: Any) -> Any:
    """The cache that a forward pass handed back, under either name; AttributeError where it hands back none."""
    cache = getattr(outputs, "cache", None)
    return outputs.past_key_values if cache is None else cache


def for_rows(cache: Any, num_rows: int, device: torch.device) -> Any:
    """An independent copy of a one-row cache on `device`, repeated for B rows."""
    own = copy.deepcopy(cache)  # linear states are updated in place
    if num_rows > 1:
        # Beam search's way to repeat a row: the one that caches of linear attention have, too.
        own.reorder_cache(torch.zeros(num_rows, dtype=torch.long, device=device))
    return own


def keep_rows(cache: Any, num_rows: int, device: torch.device) -> None:
    """Drops all rows but the leading ones of a cache on `device`."""
    cache.reorder_cache(torch.arange(num_rows, device=device))


def num_bytes(cache: Any) -> int:
    """Bytes of the tensors that a cache holds."""
    return sum(tensor.nbytes for layer in getattr(cache, "layers", [cache]) for tensor in _tensors(vars(layer)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


@dataclass(kw_only=True, slots=True)
class HeldCaches:
    """One-row caches of the anchors on the current path, so that their number is bounded by depth and not by the corpus.

    A dropped one is computed again alone and in the same chunks, so that whatever goes on from it sees the same numbers.
    """

    anchors: Mapping[int, Anchor]
    budget_bytes: int
    _held: dict[int, Any] = field(default_factory=dict)

    def begin_part(self, first_segment: int) -> None:
        """Forgets what belongs to the part itself, whose anchors have still to be counted."""
        self._held = {anchor: cache for anchor, cache in self._held.items() if anchor < first_segment}

    def get(self, anchor: int, compute: Compute) -> Any:
        """The cache at `anchor`; `compute(run, cache before it)` is called for each that is missing on the way down."""
        way = way_down(anchor, self.anchors)
        self._held = {place: self._held[place] for place in way if place in self._held}
        nearest = max((depth for depth, place in enumerate(way) if place in self._held), default=-1)
        cache = self._held[way[nearest]] if nearest >= 0 else None
        for place in way[nearest + 1 :]:
            cache = compute(self.anchors[place].run, cache)
            self._held[place] = cache
            self._drop_beyond_budget(deepest=place)
        return cache

    def most_rows(self, cache: Any) -> int:
        """How often a cache may be repeated for a batch: to as many bytes as may be held."""
        return max(1, self.budget_bytes // max(1, num_bytes(cache)))

    def _drop_beyond_budget(self, *, deepest: int) -> None:
        """From the deepest up: what lies nearest above is computed again from the least far."""
        droppable = [place for place in self._held if place != deepest]
        while droppable and sum(map(num_bytes, self._held.values())) > self.budget_bytes:
            del self._held[droppable.pop()]
