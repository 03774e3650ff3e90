"""The library's grouped experts with two things set free: how many rows are routed, and LoRA on the expert weights.

With rows = tokens x k and no LoRA it allocates what transformers' own `grouped_mm` does, to the byte (a test holds it to that).
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

NAME = "traced_grouped_mm"


class _Combine(torch.autograd.Function):
    """Routed rows (R, H) summed into tokens (T, H); backward hands each routed row its token's gradient."""

    @staticmethod
    def forward(ctx: Any, rows_RH: torch.Tensor, tokens_TH: torch.Tensor) -> torch.Tensor:
        ctx.shape = rows_RH.shape
        return torch.empty_like(tokens_TH)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # as the library's view + sum: the expanded gradient is copied into rows of its own
        (gradient_TH,) = gradients
        return gradient_TH.new_empty(ctx.shape), None


class ExpertAdapter(nn.Module):
    """LoRA factors of one grouped weight (E, out, in): down (E, in, r) and up (E, r, out), as grouped_mm takes them."""

    def __init__(self, num_experts: int, width_in: int, width_out: int, rank: int, like: torch.Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(num_experts, width_in, rank, dtype=like.dtype, device=like.device))
        self.up = nn.Parameter(torch.empty(num_experts, rank, width_out, dtype=like.dtype, device=like.device))

    def forward(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """What is added to the base product of `rows`."""
        return functional.grouped_mm(functional.grouped_mm(rows, self.down, offs=offsets), self.up, offs=offsets)


def _grouped(rows: torch.Tensor, weight: torch.Tensor, adapter: ExpertAdapter | None, offsets: torch.Tensor) -> torch.Tensor:
    product = functional.grouped_mm(rows, weight.transpose(-2, -1), offs=offsets)
    return product if adapter is None else product + adapter(rows, offsets)


def experts_forward(self: Any, hidden_TH: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
    """grouped_mm's sequence over `self.routed_rows` rows (tokens x k where it is null); only sizes are meant, not values."""
    num_tokens, num_top_k = top_k_index.shape
    num_rows = getattr(self, "routed_rows", None) or num_tokens * num_top_k
    weights = _resized(top_k_weights.reshape(-1), num_rows)
    ids_g, perm = torch.sort(_resized(top_k_index.reshape(-1), num_rows))
    rows_RH = hidden_TH[perm // num_top_k]
    weights_g = weights[perm]
    del weights  # a view of the caller's in the library, a copy here where rows are set free
    counts = torch.histc(ids_g.float(), bins=self.num_experts, min=0, max=self.num_experts - 1)
    offsets = torch.cumsum(counts, dim=0, dtype=torch.int32)
    product = _grouped(rows_RH, self.gate_up_proj, getattr(self, "gate_up_adapter", None), offsets)
    product = self._apply_gate(product)
    product = _grouped(product, self.down_proj, getattr(self, "down_adapter", None), offsets)
    weighted = product * weights_g.unsqueeze(-1)
    inverse = torch.empty_like(perm)
    inverse[perm] = torch.arange(perm.size(0), device=hidden_TH.device)
    weighted = weighted[inverse]
    if num_rows == num_tokens * num_top_k:
        return weighted.view(num_tokens, num_top_k, -1).sum(dim=1).to(hidden_TH.dtype)
    summed: torch.Tensor = _Combine.apply(weighted, hidden_TH)  # type: ignore[no-untyped-call]
    return summed


def _resized(values: torch.Tensor, num_rows: int) -> torch.Tensor:
    if values.numel() == num_rows:
        return values
    return values.repeat(-(-num_rows // values.numel()))[:num_rows]
