"""The `transformers` stack: one LoRA step of Hugging Face's implementation, priced at the instants where it can peak.

Setting: frozen BF16 base, LoRA on the linears and optionally on the grouped experts, adapters in BF16, every decoder layer
checkpointed whole (not reentrant), SDPA flash attention, `grouped_mm` experts, fused GDN kernels, one sequence, no dropout.
A pair is a token and one of its experts. Read tensor by tensor from traces of the library (pipelines/trace), which the tests
hold it to: it is never below them. What one kernel allocates and frees by itself is in neither.

An instant holds the boundaries of layers 0..i, one incoming gradient, the gradients of adapters above i, what recomputing layer i
has saved, and the routed rows of that instant; the largest counts. The head's instant holds every boundary instead.
"""

from collections.abc import Iterator
from typing import NamedTuple

from routing.core.layers import DecoderShape, LayerKind
from routing.estimate.autograd_gdn import gdn_backward, gdn_saved
from routing.estimate.autograd_parts import BF16, BLOCK_BYTES, FP32, INT64, Part

BLOCKS_ALIVE = 256  # more than any instant has, without boundaries and adapters
HEAD_CHUNK_ROWS = 512


class Sizes(NamedTuple):
    """What a step multiplies; rank 0 is no LoRA there. `full_head` is all logits at once, `fused_gdn` GDN in its kernels."""

    tokens: int
    pairs: int
    linear_rank: int
    expert_rank: int
    full_head: bool = False
    pending_gradients: bool = True
    fused_gdn: bool = True


class Instant(NamedTuple):
    """Everything alive at one moment; `layer` is null for the head."""

    layer: int | None
    name: str
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """Their sum."""
        return sum(part.num_bytes for part in self.parts)


def peak(shape: DecoderShape, sizes: Sizes) -> Instant:
    """The largest instant of a step."""
    return max(instants(shape, sizes), key=lambda one: one.num_bytes)


def instants(shape: DecoderShape, sizes: Sizes) -> Iterator[Instant]:
    """Every instant that can be the peak: the head's, and each layer's."""
    yield _head(shape, sizes)
    gradients = 0
    moments = {kind: tuple(_moments(shape, sizes, kind)) for kind in set(shape.kinds)}
    for layer in reversed(range(shape.num_layers)):
        kind = shape.kinds[layer]
        own = _linear_gradient_bytes(shape, sizes, kind)
        for name, parts in moments[kind]:
            alive = (
                Part("boundaries", sizes.tokens, (layer + 1) * shape.hidden_size * BF16),
                Part("incoming_gradient", sizes.tokens, shape.hidden_size * BF16),
                *parts,
                Part("adapter_gradients", 1, gradients + own),
                _rotary(shape, sizes),
                _rounding(shape),
            )
            yield Instant(layer, name, _merged(alive, sizes))
        gradients += own + _expert_gradient_bytes(shape, sizes)


def _merged(parts: tuple[Part, ...], sizes: Sizes) -> tuple[Part, ...]:
    """Adapter gradients as one part, of no bytes where they are held already."""
    pending = sum(part.bytes_per_row for part in parts if part.name == "adapter_gradients")
    others = tuple(part for part in parts if part.name != "adapter_gradients")
    return (*others, Part("adapter_gradients", 1, pending if sizes.pending_gradients else 0))


def _moments(shape: DecoderShape, sizes: Sizes, kind: LayerKind) -> Iterator[tuple[str, tuple[Part, ...]]]:
    """The instants of one layer kind, without what is alive outside the layer."""
    tokens, hidden = sizes.tokens, shape.hidden_size
    mixer = _mixer_saved(shape, sizes, kind)
    saved = (
        Part("norms", tokens, 2 * (hidden * (FP32 + BF16) + FP32)),
        *mixer,
        Part("router_state", tokens, _router_saved(shape)),
        Part("shared_expert", tokens, _shared_saved(shape, sizes)),
    )
    residual = Part("residual", tokens, hidden * BF16)
    logits = Part("router_logits", tokens, shape.num_experts * BF16)
    output = Part("shared_expert_output", tokens, hidden * BF16 if shape.shared_ffn_size else 0)
    for name, per_pair in _recomputed(shape, sizes):
        yield name, (*saved, residual, logits, output, Part("routed_rows", sizes.pairs, per_pair))
    # the shared expert's gradients, through its gate and around it, wait while the routed rows are taken back
    waiting = Part("shared_expert_gradients", tokens, 2 * hidden * BF16 if shape.shared_ffn_size else 0)
    for name, per_pair, gradients in _taken_back(shape, sizes):
        pairs = Part("routed_rows", sizes.pairs, per_pair)
        yield name, (*saved, waiting, pairs, Part("adapter_gradients", 1, gradients))
    own = Part("adapter_gradients", 1, _expert_gradient_bytes(shape, sizes))
    yield "norm backward", (saved[0], *mixer, residual, Part("norm_backward", tokens, 4 * hidden * FP32), own)
    if kind.mixer == "gdn" and shape.gdn is not None:
        norm = Part("norms", tokens, hidden * (FP32 + BF16) + FP32)
        for name, held in gdn_backward(shape.gdn, tokens, sizes.linear_rank * BF16, fused=sizes.fused_gdn):
            yield name, (norm, *held, own)
    else:
        copies = Part("mixer_backward", tokens, 5 * shape.query_width * FP32)  # queries in float32
        yield "attention backward", (saved[0], *mixer, residual, copies, own)


def _recomputed(shape: DecoderShape, sizes: Sizes) -> Iterator[tuple[str, int]]:
    """Bytes a pair while the layer is computed again.

    Without a shared expert the sum over experts is the first thing that backward undoes, before anything saved is asked for: a
    copy of the gradient for every pair stands beside the recompute.
    """
    row, ffn = shape.hidden_size * BF16, shape.expert_ffn_size * BF16
    early = 0 if shape.shared_ffn_size else row
    index = 3 * INT64 + BF16
    saved = 3 * ffn + index  # gate and up, the activated gate
    low = _lora_rows(sizes)
    lora = (ffn + 2 * low) if low else 0
    # rows, their product, weighted, and back in order (or the two index lists that bring them there)
    yield "experts computed again", early + (4 if shape.shared_ffn_size else 3) * row + saved + lora + 2 * INT64
    if low:
        yield "expert adapters computed again", early + 4 * row + saved + lora
        yield "expert gates computed again", early + row + 6 * ffn + low + index


def _taken_back(shape: DecoderShape, sizes: Sizes) -> Iterator[tuple[str, int, int]]:
    """Bytes a pair while the routed experts are backpropagated, and those of the layer's own expert gradients by then."""
    row, ffn = shape.hidden_size * BF16, shape.expert_ffn_size * BF16
    index = 3 * INT64 + 2 * BF16
    low = _lora_rows(sizes)
    lora = (row + ffn + 2 * low) if low else 0
    all_gradients = _expert_gradient_bytes(shape, sizes)
    down_gradients = shape.num_experts * sizes.expert_rank * (shape.expert_ffn_size + shape.hidden_size) * BF16
    # the product, its gradient before and after the weights, and the weights' own
    yield "expert weights backward", 4 * row + 3 * ffn + index + lora, 0
    yield "expert gates backward", row + 9 * ffn + index + lora, down_gradients
    if low:
        yield "expert adapters backward", max(3 * row, 2 * (row + ffn)) + index + 2 * low, all_gradients


def _lora_rows(sizes: Sizes) -> int:
    return sizes.expert_rank * BF16


def _mixer_saved(shape: DecoderShape, sizes: Sizes, kind: LayerKind) -> tuple[Part, ...]:
    """What the mixer keeps for backward, its input norm left out."""
    low = sizes.linear_rank * BF16
    if kind.mixer == "gdn" and shape.gdn is not None:
        return gdn_saved(shape.gdn, sizes.tokens, low, fused=sizes.fused_gdn)
    query, kv, heads = shape.query_width, shape.kv_width, shape.num_query_heads
    # queries and keys in float32 for their norms, then rotated; values; output and its log-sum-exp
    saved = (query + kv) * FP32 + (2 * query + 2 * kv) * BF16 + (2 * heads + shape.num_kv_heads) * FP32 + 4 * low
    gated = 2 * query * BF16 if shape.output_gate else 0  # the gate's sigmoid, and the gated output
    return (Part("mixer", sizes.tokens, saved + gated),)


def _router_saved(shape: DecoderShape) -> int:
    return shape.num_experts * FP32 + shape.top_k * (INT64 + FP32 + BF16) + FP32


def _shared_saved(shape: DecoderShape, sizes: Sizes) -> int:
    if not shape.shared_ffn_size:
        return 0
    # gate, up, activated gate, their product; the sigmoid of its own gate
    return 4 * shape.shared_ffn_size * BF16 + BF16 + 4 * sizes.linear_rank * BF16


def _head(shape: DecoderShape, sizes: Sizes) -> Instant:
    """Every boundary, the last norm, and three float32 copies of the logits (log-softmax, its gradient, the logits' gradient)."""
    rows = sizes.tokens if sizes.full_head else min(sizes.tokens, HEAD_CHUNK_ROWS)
    hidden = shape.hidden_size
    return Instant(
        None,
        "head",
        (
            Part("boundaries", sizes.tokens, shape.num_layers * hidden * BF16),
            Part("norms", sizes.tokens, hidden * (FP32 + BF16) + FP32),
            Part("incoming_gradient", sizes.tokens, hidden * BF16),
            Part("lm_head", rows, 3 * shape.vocab_size * FP32),
            _rotary(shape, sizes),
            _rounding(shape),
        ),
    )


def _rotary(shape: DecoderShape, sizes: Sizes) -> Part:
    """Cosine and sine of a whole head, and positions and labels."""
    return Part("positions", sizes.tokens, 2 * shape.head_dim * BF16 + 2 * INT64)


def _rounding(shape: DecoderShape) -> Part:
    return Part("block_rounding", BLOCKS_ALIVE + shape.num_layers, BLOCK_BYTES)


def _linear_gradient_bytes(shape: DecoderShape, sizes: Sizes, kind: LayerKind) -> int:
    return _linear_widths(shape, kind) * sizes.linear_rank * BF16


def _linear_widths(shape: DecoderShape, kind: LayerKind) -> int:
    """in + out of every adapted linear of a layer."""
    hidden = shape.hidden_size
    shared = 3 * (hidden + shape.shared_ffn_size) if shape.shared_ffn_size else 0
    if kind.mixer == "gdn" and shape.gdn is not None:
        key, value = shape.gdn.key_width, shape.gdn.value_width
        return shared + (hidden + 2 * key + value) + 2 * (hidden + value)
    query = shape.query_width * (2 if shape.output_gate else 1)
    return shared + (hidden + query) + 2 * (hidden + shape.kv_width) + (shape.query_width + hidden)


def _expert_gradient_bytes(shape: DecoderShape, sizes: Sizes) -> int:
    hidden, ffn = shape.hidden_size, shape.expert_ffn_size
    return shape.num_experts * sizes.expert_rank * ((hidden + 2 * ffn) + (ffn + hidden)) * BF16
