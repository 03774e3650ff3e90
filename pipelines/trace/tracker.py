"""Bytes alive under a piece of torch code, by following untyped storages from the operation that made them to their last use.

Works on real tensors and under FakeTensorMode. What a kernel allocates and frees inside one operation is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

BLOCK_BYTES = 512  # the CUDA caching allocator rounds every block up to this
_aten = torch.ops.aten
# Autograd fills fresh zeros in place; under any dispatch mode it takes the copying form instead, which a plain run never does.
IN_PLACE: dict[Any, Any] = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter_add.default: _aten.scatter_add_.default,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One storage: its bytes, rounded up to a block, and the operation, dtype and shape that it was first seen with."""

    num_bytes: int
    operation: str
    dtype: str
    shape: tuple[int, ...]


def rounded(num_bytes: int, block_bytes: int = BLOCK_BYTES) -> int:
    """`num_bytes` as the allocator hands them out."""
    return -(-num_bytes // block_bytes) * block_bytes


class StorageTracker(TorchDispatchMode):
    """Counts storages that operations make while it is on; those of `known` tensors are the baseline and are not counted.

    `peak_bytes` is the most that was alive after any operation; `at_peak` is what it was made of.
    """

    def __init__(self, known: Iterable[torch.Tensor] = (), *, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__()
        self.alive_bytes = 0
        self.peak_bytes = 0
        self.peak_operation = ""
        self._block_bytes = block_bytes
        self._alive: dict[int, Block] = {}
        self._at_peak: dict[int, Block] = {}
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._place = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._remember(tensor.untyped_storage())

    @property
    def at_peak(self) -> Counter[tuple[str, str, tuple[int, ...]]]:
        """Bytes alive at the peak, by operation, dtype and shape."""
        found: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
        for block in self._at_peak.values():
            found[block.operation, block.dtype, block.shape] += block.num_bytes
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = IN_PLACE.get(func, func)(*args, **(kwargs or {}))
        for one in tree_iter(made):
            if isinstance(one, torch.Tensor):
                self._follow(one, str(func))
        if self.alive_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_operation, self._at_peak = self.alive_bytes, str(func), dict(self._alive)
        return made

    def _remember(self, storage: torch.UntypedStorage) -> None:
        self._seen[id(storage)] = weakref.ref(storage)

    def _follow(self, tensor: torch.Tensor, operation: str) -> None:
        storage = tensor.untyped_storage()
        seen = self._seen.get(id(storage))
        if seen is not None and seen() is storage:
            return
        self._place += 1
        place, key = self._place, id(storage)
        num_bytes = rounded(storage.nbytes(), self._block_bytes)
        self._alive[place] = Block(
            num_bytes=num_bytes, operation=operation, dtype=str(tensor.dtype)[6:], shape=tuple(tensor.shape)
        )
        self.alive_bytes += num_bytes

        def freed(ref: weakref.ref[Any]) -> None:
            self.alive_bytes -= self._alive.pop(place).num_bytes
            if self._seen.get(key) is ref:
                del self._seen[key]

        self._seen[key] = weakref.ref(storage, freed)
