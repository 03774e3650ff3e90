"""Rows and faults of several layers of one device, counted together.

What a layer's counting costs is the number of its operations more than what they read, so layers wait until there are a few.
G layers, T tokens of a padded batch, K experts a token, S segment slots, E experts.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from routing.measure.router_faults import fault_bits

# Of ids and weights that wait. A few layers of a small batch, and one layer at a time where a batch is large.
_MOST_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """One layer's rows [S + 1, E] int32, the last slot padding and context; its tokens' fault bits uint8 [T], the largest."""

    rows: Tensor
    fault_bits: Tensor
    largest_bits: Tensor
    weights_dtype: torch.dtype | None


@dataclass(kw_only=True, slots=True)
class Tally:
    """Layers that wait: of one device, and of one type and width of weights. A token whose slot is `num_slots` is not counted."""

    slot_T: Tensor
    num_slots: int
    num_experts: int
    weights_kind: tuple[torch.dtype, int] | None
    _layers: list[int] = field(init=False, default_factory=list)
    _ids_KT: list[Tensor] = field(init=False, default_factory=list)
    _weights_KT: list[Tensor] = field(init=False, default_factory=list)
    _waiting_bytes: int = field(init=False, default=0)

    @property
    def is_full(self) -> bool:
        """Whether what waits is to be counted now."""
        return self._waiting_bytes >= _MOST_BYTES

    def add(self, layer: int, ids_TK: Tensor, weights_TK: Tensor | None) -> None:
        """Copies what the experts may yet change. Tokens stand side by side, which a CPU takes a quarter of the time for."""
        if ids_TK.dtype.itemsize < torch.int32.itemsize:
            ids_TK = ids_TK.to(torch.int32)
        # -1 and E are out of range; wider ids would look like others in 32 bits.
        ids_KT = ids_TK.clamp(-1, self.num_experts).t().to(torch.int32, memory_format=torch.contiguous_format)
        self._layers.append(layer)
        self._ids_KT.append(ids_KT)
        self._waiting_bytes += ids_KT.nbytes
        if weights_TK is not None:
            self._weights_KT.append(weights_TK.t().clone(memory_format=torch.contiguous_format))
            self._waiting_bytes += self._weights_KT[-1].nbytes

    def count(self) -> dict[int, Counted]:
        """Every layer that waits, by its number."""
        ids_GKT = torch.stack(self._ids_KT)
        weights_GKT = torch.stack(self._weights_KT) if self._weights_KT else None
        rows_GSE = self._rows(ids_GKT)
        bits_GT = fault_bits(ids_GKT, weights_GKT, self.slot_T < self.num_slots, num_experts=self.num_experts)
        dtype = None if self.weights_kind is None else self.weights_kind[0]
        return {
            layer: Counted(rows=rows_SE, fault_bits=bits_T, largest_bits=largest, weights_dtype=dtype)
            for layer, rows_SE, bits_T, largest in zip(self._layers, rows_GSE, bits_GT, bits_GT.amax(1), strict=True)
        }

    def _rows(self, ids_GKT: Tensor) -> Tensor:
        """[G, S + 1, E]: ids out of range count for the nearest expert, as their faults are told anyway."""
        size = (self.num_slots + 1) * self.num_experts
        start_G = self.slot_T.new_full((len(ids_GKT),), size).cumsum(0) - size
        first_GT = start_G[:, None] + self.slot_T * self.num_experts
        index_GKT = ids_GKT.clamp(0, self.num_experts - 1) + first_GT[:, None]
        # Not `bincount`, which on CUDA waits for the device to learn the largest index.
        rows = index_GKT.new_zeros(size * len(ids_GKT), dtype=torch.int32)
        ones = index_GKT.new_ones((), dtype=torch.int32).expand(index_GKT.numel())
        return rows.scatter_add_(0, index_GKT.flatten(), ones).view(len(ids_GKT), -1, self.num_experts)
