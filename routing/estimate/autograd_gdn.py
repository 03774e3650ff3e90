"""What a gated delta net layer holds on the `transformers` stack, with its fused kernels or PyTorch's own float32 code.

Fused: flash-linear-attention's chunk_gated_delta_rule and causal-conv1d, read from their source (docs/estimator.md has the
tensors); fallback: transformers' torch_chunk_gated_delta_rule and torch's convolution, traced. The norm is PyTorch's in both.

J key heads, N value heads, D key head dim, V value head dim; chunks of 64 tokens, the last one whole. Rows are tokens or chunks.
"""

from collections.abc import Iterator

from routing.core.layers import GdnShape
from routing.estimate.autograd_parts import BF16, BLOCK_BYTES, FP32, Part

CHUNK_TOKENS = 64


def gdn_saved(gdn: GdnShape, tokens: int, low: int, *, fused: bool) -> tuple[Part, ...]:
    """What the mixer keeps for backward, its input norm left out; `low` is a LoRA row in bytes."""
    kept = _kept(gdn, low, fused=fused) + _norm_saved(gdn) + low
    chunks = () if fused else (Part("gdn_chunks", _chunks(tokens), _fallback_chunk(gdn)),)
    return Part("mixer", tokens, kept), *chunks


def gdn_backward(gdn: GdnShape, tokens: int, low: int, *, fused: bool) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """The instants of the mixer's own backward, by all that it holds then."""
    saved = gdn_saved(gdn, tokens, low, fused=fused)
    # the output's gradient and two products in float32, the input's in BF16; the norm's own output is gone
    yield "gated norm backward", (*saved, Part("mixer_backward", tokens, 5 * gdn.value_width * BF16))
    kept = Part("mixer", tokens, _kept(gdn, low, fused=fused))
    gate_gradient = gdn.value_width * BF16
    if fused:
        states = Part("gdn_chunks", _chunks(tokens), 2 * gdn.num_value_heads * gdn.key_head_dim * gdn.value_head_dim * BF16)
        yield "delta rule backward", (kept, states, Part("mixer_backward", tokens, gate_gradient + _fused_backward(gdn)))
        return
    chunk = Part("gdn_chunks", _chunks(tokens), _fallback_chunk(gdn) + _fallback_chunk_backward(gdn))
    yield "delta rule backward", (kept, chunk, Part("mixer_backward", tokens, gate_gradient))


def _kept(gdn: GdnShape, low: int, *, fused: bool) -> int:
    """Bytes a token that projections, convolution and delta rule keep, chunks left out."""
    keys, values, heads = gdn.key_width, gdn.value_width, gdn.num_value_heads
    convolved = (2 * keys + values) * BF16
    if fused:
        # the convolution's input; queries and keys normed; values; chunk solutions
        wide = convolved + (2 * keys + values + CHUNK_TOKENS * heads) * BF16
        # the decay's input and its sum over the chunk, beta; a norm a query and key head
        return wide + heads * (2 * FP32 + BF16) + 2 * gdn.num_key_heads * FP32 + 2 * low
    # the convolution's input and output; queries and keys at value heads; decay's input, two norms, beta
    return 2 * convolved + 2 * _at_value_heads(gdn) * FP32 + heads * (3 * FP32 + BF16) + 2 * low


def _norm_saved(gdn: GdnShape) -> int:
    """Input, gate and its activation in float32; the weighted rows and the output; a norm a head."""
    return gdn.value_width * (3 * FP32 + 2 * BF16) + gdn.num_value_heads * FP32


def _fused_backward(gdn: GdnShape) -> int:
    """Bytes a token beside what is kept: the larger of the ends of chunk_bwd_dqkwg and prepare_wy_repr_bwd."""
    keys, values = gdn.key_width * BF16, gdn.value_width * BF16
    at_values = _at_value_heads(gdn) * BF16
    summed = keys if gdn.num_key_heads != gdn.num_value_heads else 0  # over the value heads that share a key
    heads = gdn.num_value_heads * (2 * FP32 + BF16)
    both = at_values + 4 * values + heads  # w; u, new values, their gradient, the output's
    first = 3 * at_values + summed  # gradients of queries, keys, w
    second = 2 * at_values + values + 2 * keys + summed  # those of w, keys again, values, queries and keys summed
    return both + max(first, second)


def _fallback_chunk(gdn: GdnShape) -> int:
    """Bytes a chunk that the float32 code keeps: padded copies, products with decay, 64 x 64 systems, one state."""
    heads, at_values = gdn.num_value_heads, _at_value_heads(gdn)
    # queries and keys padded, keys times beta, both times their decay, solved keys; values padded, solved, new
    rows = 6 * at_values + 3 * gdn.value_width
    systems = 5 * CHUNK_TOKENS * heads  # pairwise decay, two products before and after it
    state = heads * gdn.key_head_dim * gdn.value_head_dim
    decays = (4 * CHUNK_TOKENS + 1) * heads  # beta padded, three exponentials; a chunk's own
    return (CHUNK_TOKENS * (rows + systems) + state + decays) * FP32 + 2 * BLOCK_BYTES


def _fallback_chunk_backward(gdn: GdnShape) -> int:
    """Bytes a chunk beside those: every gradient is gathered whole, and one more of it stands beside while it is added."""
    at_values, values = _at_value_heads(gdn), gdn.value_width
    # queries, keys, solved keys; solved values, the output
    gathered = 3 * at_values + 2 * values + CHUNK_TOKENS * gdn.num_value_heads
    return CHUNK_TOKENS * (gathered + 2 * max(at_values, values)) * FP32


def _at_value_heads(gdn: GdnShape) -> int:
    return gdn.num_value_heads * gdn.key_head_dim


def _chunks(tokens: int) -> int:
    return -(-tokens // CHUNK_TOKENS)
