"""How a placement of experts reaches the queries: experts side by side in blocks, and the rank that owns each block."""

import math
from collections.abc import Sequence
from typing import Any

from routing.core.placement import Placement
from routing.core.shapes import ModelShape


def block_parameters(shape: ModelShape, placement: Placement, eps: Sequence[int]) -> dict[str, Any]:
    """The parameters of `sql/block_loads.sql` beside the model's experts: the coarsest blocks that every EP size is made of."""
    num_blocks = math.lcm(*eps)
    positions = placement.positions(num_layers=shape.num_layers, num_experts=shape.num_experts, num_blocks=num_blocks)
    return {"block_experts": shape.num_experts // num_blocks, "positions": positions}


def rank_parameters(placement: Placement, eps: Sequence[int]) -> dict[str, list[int]]:
    """The parameters of `sql/rank_loads.sql`."""
    num_blocks = math.lcm(*eps)
    owned = [(ep, block, placement.owner(block, ep=ep, num_blocks=num_blocks)) for ep in eps for block in range(num_blocks)]
    all_eps, blocks, ranks = zip(*owned, strict=True)
    return {"eps": list(all_eps), "blocks": list(blocks), "ranks": list(ranks)}
