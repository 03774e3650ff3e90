"""Stand-ins that allocate and save what the fused gated delta net kernels do: sizes only, no values (`mirrored`).

Reviewed tensor by tensor against flash-linear-attention 0.6.0 (fla-core 0.6.0, Triton kernels) and causal-conv1d, as transformers
calls them in training: queries and keys unrepeated and normed inside, decay and beta from outside, no initial state, no final
state, no cu_seqlens. docs/estimator.md has the table: each tensor, its file and function. Without the kernels transformers runs
PyTorch code in float32 (`fallback`).

T tokens, J key heads, N value heads, D key head dim, V value head dim, C chunks of 64 tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

CHUNK_TOKENS = 64
KEY_TILE = 128  # chunk_bwd_dqkwg holds a gate gradient for every 128 of D (16-bit inputs on Ampere and Hopper; 64 on Ada)


class _DeltaRule(torch.autograd.Function):
    """ChunkGatedDeltaRuleFunction with use_qk_l2norm_in_kernel."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        q, k, v, g, beta = (one.contiguous() for one in (q, k, v, g, beta))  # input_guard, held to the end of forward
        q_normed, q_rstd = torch.empty_like(q), _float(q, q.shape[:-1])
        k_normed, k_rstd = torch.empty_like(k), _float(k, k.shape[:-1])
        g_sum = _float(g, g.shape)
        solved = k.new_empty((*g.shape, CHUNK_TOKENS))
        w, u = _at_value_heads(k, v), torch.empty_like(v)
        states, v_new = _states(k, v), torch.empty_like(v)
        output = torch.empty_like(v)
        ctx.save_for_backward(q_normed, q_rstd, k_normed, k_rstd, v, g_sum, beta, solved)
        del w, u, states, v_new
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        saved = ctx.saved_tensors  # all of them held to the end
        dq, dk, dv, db, dg = _chunk_backward(saved, gradients[0].contiguous())
        dq = torch.empty_like(dq)  # back through the norms
        dk = torch.empty_like(dk)
        return dq, dk, dv, dg, db


def _chunk_backward(saved: tuple[torch.Tensor, ...], do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """chunk_gated_delta_rule_bwd: what it makes is held until it returns, but for what it binds anew."""
    q, _, k, _, v, g, beta, _ = saved
    w, u = _at_value_heads(k, v), torch.empty_like(v)
    states, v_new = _states(k, v), torch.empty_like(v)
    dv = torch.empty_like(do)
    d_states, dv = _states(k, v), torch.empty_like(dv)
    dq, dk, dw, dg = _dqkwg(q, k, w, g, v)
    dk_wy, dv, db, dg_wy = _prepare_wy(k, v, g, beta)  # added to dk and dg in place
    dg = torch.empty_like(dg)
    del u, states, v_new, d_states, dw, dk_wy, dg_wy
    return dq, dk, dv, db, dg


def _dqkwg(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, g: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """chunk_bwd_dqkwg: gradients of queries and keys at value heads, summed over the heads that share a key."""
    dq, dk = _at_value_heads(q, v), _at_value_heads(k, v)
    dg = _float(g, (-(-k.shape[-1] // KEY_TILE), *g.shape))
    dw = torch.empty_like(w)
    if q.shape[2] != v.shape[2]:
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
    dg = _float(g, g.shape)
    return dq, dk, dw, dg


def _prepare_wy(k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """prepare_wy_repr_bwd."""
    dk, dv, dg, db = _at_value_heads(k, v), torch.empty_like(v), torch.empty_like(g), torch.empty_like(beta)
    if k.shape[2] != v.shape[2]:
        dk = torch.empty_like(k)
    return dk, dv, db, dg


class _Conv(torch.autograd.Function):
    """CausalConv1dFn with SiLU: saves its input; backward computes the activation again, and the frozen weight's gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.empty_like(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, weight = ctx.saved_tensors
        d_rows, d_weight = torch.empty_like(rows), _float(weight, weight.shape)
        return d_rows, d_weight.to(weight.dtype)


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


def _at_value_heads(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return k.new_empty((*v.shape[:3], k.shape[3]))


def _states(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    num_chunks = -(-v.shape[1] // CHUNK_TOKENS)
    return k.new_empty((v.shape[0], num_chunks, v.shape[2], k.shape[3], v.shape[3]))


def _float(like: torch.Tensor, shape: Any) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=torch.float32, device=like.device)
