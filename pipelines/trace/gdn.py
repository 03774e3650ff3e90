"""Stand-ins that allocate and save what the fused gated delta net kernels do: sizes only, no values (`mirrored`).

Read tensor by tensor from flash-linear-attention's ChunkGatedDeltaRuleFunction (chunk 64, L2 norm of queries and keys inside) and
causal-conv1d's function with SiLU. Where value heads outnumber key heads, the kernels take queries and keys unrepeated and hold
gradients at value heads before they are summed. Without the kernels transformers runs PyTorch code in float32 (`fallback`).

T tokens, J key heads, N value heads, D key head dim, V value head dim, C chunks of 64 tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

CHUNK_TOKENS = 64


class _DeltaRule(torch.autograd.Function):
    """chunk_gated_delta_rule with use_qk_l2norm_in_kernel."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        q, k, v, g, beta = (one.contiguous() for one in (q, k, v, g, beta))
        q_normed, k_normed = torch.empty_like(q), torch.empty_like(k)
        q_rstd, k_rstd = _float(q, q.shape[:-1]), _float(k, k.shape[:-1])
        g_sum = _float(g, g.shape)
        products = _float(g, (*g.shape, CHUNK_TOKENS))
        solved = v.new_empty((*g.shape, CHUNK_TOKENS))
        del products
        w, u = v.new_empty((*g.shape, k.shape[-1])), torch.empty_like(v)
        states, v_new = _states(k, v), torch.empty_like(v)
        output = torch.empty_like(v)
        ctx.save_for_backward(q_normed, q_rstd, k_normed, k_rstd, v, g_sum, beta, solved)
        del w, u, states, v_new
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, _, k, _, v, g, beta, _ = ctx.saved_tensors
        do = gradients[0].contiguous()
        at_value_heads = (*g.shape, k.shape[-1])
        w, u = v.new_empty(at_value_heads), torch.empty_like(v)
        states, v_new = _states(k, v), torch.empty_like(v)
        dv_local = torch.empty_like(do)
        d_states, dv = _states(k, v), torch.empty_like(dv_local)
        del dv_local
        dq, dk, dw = (v.new_empty(at_value_heads) for _ in range(3))
        dg = _float(g, g.shape)
        dk_wy, dv_wy, db, dg_wy = v.new_empty(at_value_heads), torch.empty_like(v), _float(g, g.shape), _float(g, g.shape)
        dg_sum = _float(g, g.shape)
        dq_summed, dk_summed = torch.empty_like(q), torch.empty_like(k)
        del dq, dk, dw, dk_wy, dv, dg, dg_wy, w, u, states, v_new, d_states
        dq_raw, dk_raw = torch.empty_like(dq_summed), torch.empty_like(dk_summed)
        return dq_raw, dk_raw, dv_wy, dg_sum, db.to(beta.dtype)


class _Conv(torch.autograd.Function):
    """causal_conv1d_fn with SiLU: saves its input, computes the activation again in backward."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.empty_like(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        rows, _ = ctx.saved_tensors
        return torch.empty_like(rows), None


def delta_rule(query: Any, key: Any, value: Any, *, g: Any, beta: Any, **_: Any) -> tuple[torch.Tensor, None]:
    """In place of transformers' torch_chunk_gated_delta_rule; no final state, as in training."""
    output: torch.Tensor = _DeltaRule.apply(query, key, value, g, beta)  # type: ignore[no-untyped-call]
    return output, None


def conv(rows: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """In place of transformers' causal_conv1d_fn; (1, channels, T), channels last in memory."""
    output: torch.Tensor = _Conv.apply(rows, weight)  # type: ignore[no-untyped-call]
    return output


@contextmanager
def mirrored() -> Iterator[None]:
    """Puts the stand-ins where the modelling code looks for its kernels, for as long as it lasts."""
    module: Any = modeling_qwen3_5_moe
    kept = module.torch_chunk_gated_delta_rule, module.causal_conv1d_fn
    module.torch_chunk_gated_delta_rule, module.causal_conv1d_fn = delta_rule, conv
    try:
        yield
    finally:
        module.torch_chunk_gated_delta_rule, module.causal_conv1d_fn = kept


def _states(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    num_chunks = -(-v.shape[1] // CHUNK_TOKENS)
    return v.new_empty((v.shape[0], num_chunks, v.shape[2], k.shape[3], v.shape[3]))


def _float(like: torch.Tensor, shape: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=torch.float32, device=like.device)
