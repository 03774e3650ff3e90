"""PyTorch flex attention in the stages of a context-parallel executor, and what it keeps for backward.

A stage is padded, attends, and gives its output and log-sum-exp for its logical rows; every stage but the first is merged into
what came before, by a function that keeps the merged rows in float32. Forward only: what is kept is known by then.

S rows of queries, Q and K padded rows, H query heads, G key heads, D head dim.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from routing.core.layers import DecoderShape
from routing.core.wave import Stage


class _Merge(torch.autograd.Function):
    """Two partial attentions (1, H, S, D) and their log-sum-exps (1, H, S) as one; keeps both and the merged, in float32."""

    @staticmethod
    def forward(ctx: Any, one: Any, one_lse: Any, other: Any, other_lse: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.logaddexp(one_lse, other_lse)
        merged = torch.empty(one.shape, dtype=torch.float32, device=one.device)
        torch.mul(one, (one_lse - lse).exp().unsqueeze(-1), out=merged)
        merged.addcmul_(other, (other_lse - lse).exp().unsqueeze(-1))
        ctx.save_for_backward(one, one_lse, other, other_lse, merged, lse)
        return merged, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, one_lse, other, other_lse, merged, lse = ctx.saved_tensors
        found: list[torch.Tensor] = []
        for part, part_lse in ((one, one_lse), (other, other_lse)):
            weight = (part_lse - lse).exp()
            through = (gradients[0] * (part - merged)).sum(-1) + gradients[1]
            found += [(gradients[0] * weight.unsqueeze(-1)).to(part.dtype), weight * through]
        return tuple(found)


def kept_bytes(shape: DecoderShape, stages: Sequence[Stage], device: torch.device) -> int:
    """Bytes of every storage that autograd saves over `stages` of one rank, of rows fetched and of outputs copied.

    Every stage gathers its own queries. Block masks are left out.
    """
    make: Any = torch.compile(flex_attention) if device.type == "cuda" else flex_attention
    saved: dict[int, int] = {}
    ignored: set[int] = set()
    held: list[Any] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        _count(tensor, saved)
        return tensor

    size = {"dtype": torch.bfloat16, "device": device, "requires_grad": True}
    queries = max(stage.q for stage in stages)
    query = torch.randn(1, shape.num_query_heads, queries, shape.head_dim, **size)
    merged: Any = None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _on(device):
        for stage in stages:
            key, value = (torch.randn(1, shape.num_kv_heads, stage.k, shape.head_dim, **size) for _ in range(2))
            if stage.kind == "remote":
                for fetched in (key, value):
                    _count(fetched, saved)
            mask = _mask(stage, device)
            ignored.update(one.untyped_storage().data_ptr() for one in mask.as_tuple() if isinstance(one, torch.Tensor))
            part = _attend(make, stage, query[:, :, : stage.q].clone(), key, value, mask)
            if padded(stage)[0] != stage.q:
                for copied in part:
                    _count(copied, saved)
            held += [mask, key, value, part]
            merged = part if merged is None else _Merge.apply(*merged, *part)  # type: ignore[no-untyped-call]
            held.append(merged)
    return sum(num_bytes for pointer, num_bytes in saved.items() if pointer not in ignored)


def padded(stage: Stage) -> tuple[int, int]:
    """Query and key rows that the kernel sees: whole blocks of 128 and 64, two of them at least."""
    return max(256, -(-stage.q_len // 128) * 128), max(128, -(-stage.k_len // 64) * 64)


def _attend(make: Callable[..., Any], stage: Stage, query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    rows, keys = padded(stage)
    query = _pad(query, rows)
    wanted = AuxRequest(lse=True)
    output, found = make(query, _pad(key, keys), _pad(value, keys), block_mask=mask, enable_gqa=True, return_aux=wanted)
    lse = found.lse
    if rows == stage.q:
        return output, lse
    return output[:, :, : stage.q].contiguous(), lse[:, :, : stage.q].contiguous()


def _pad(rows: torch.Tensor, length: int) -> torch.Tensor:
    return rows if rows.shape[2] == length else functional.pad(rows, (0, 0, 0, length - rows.shape[2]))


def _mask(stage: Stage, device: torch.device) -> Any:
    local, num_keys = stage.kind == "local", stage.k

    def seen(_batch: Any, _head: Any, row: Any, key: Any) -> Any:
        return (key < num_keys) & (row >= key) if local else key < num_keys

    rows, keys = padded(stage)
    return create_block_mask(seen, None, None, rows, keys, device=str(device))


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Flex attention refuses gradients on the CPU, though its unfused form has them and saves the same: passed over there."""
    module: Any = library
    if device.type != "cpu":
        yield
        return
    kept, module._validate_device = module._validate_device, lambda *_: None
    try:
        yield
    finally:
        module._validate_device = kept


def _count(tensor: torch.Tensor, saved: dict[int, int]) -> None:
    storage = tensor.untyped_storage()
    saved[storage.data_ptr()] = storage.nbytes()
