"""What a table of allowances belongs to: the routed geometry of a model."""

import hashlib
import json
from dataclasses import dataclass

from routing.core.errors import InputError

MAX_WIDTH = 1 << 20  # far above any model; a larger number is a damaged one
_WIDTHS = ("hidden_size", "expert_ffn_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Layers, experts and widths of one Mixture-of-Experts model.

    `moe_layers` are decoder layer indices, 0-based, dense layers counted; `hidden_size` and `expert_ffn_size` are elements,
    0 where nobody said: recorded counts name layers and experts and no widths.
    """

    num_layers: int
    moe_layers: tuple[int, ...]
    num_experts: int
    top_k: int
    hidden_size: int
    expert_ffn_size: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_experts", "top_k", "hidden_size", "expert_ffn_size"):
            if getattr(self, name) < (0 if name in _WIDTHS else 1):
                raise InputError(f"{name}={getattr(self, name)} is not positive")
            if getattr(self, name) > MAX_WIDTH:
                raise InputError(f"{name}={getattr(self, name)} is above {MAX_WIDTH}")
        if self.top_k > self.num_experts:
            raise InputError(f"top_k={self.top_k} is above num_experts={self.num_experts}")
        if not self.moe_layers or list(self.moe_layers) != sorted(set(self.moe_layers)):
            raise InputError(f"moe_layers={list(self.moe_layers)[:8]} must rise and hold at least one layer")
        if self.moe_layers[0] < 0 or self.moe_layers[-1] >= self.num_layers:
            raise InputError(f"moe_layers reach {self.moe_layers[-1]}, beyond num_layers={self.num_layers}")

    @property
    def shape_hash(self) -> str:
        """sha256 over the six fields, so that two names of one shape are recognised."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
