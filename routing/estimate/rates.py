"""What one row costs in every term, by shape and parallel sizes; computed once, not per wave.

b = 2 bytes (BF16), H hidden, A query and KV key width, Kw and V GDN key and value width, Fs shared width. Source of each figure:
the published checkpoint floor of OpenPipe/ART's TrainerRank unless the attribute says otherwise.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from routing.core.layers import DecoderShape, LayerKind, Mixer
from routing.core.wave import Adapter
from routing.estimate.executor import BYTES_PER_ELEMENT, ExecutorRates, executor_rates
from routing.estimate.routed import RoutedStage, routed_stages

TE_WORKSPACE_BYTES = 5 * (32 * 2**20 + 2**10)  # 4 grouped-GEMM streams and a plain one
COLD_TRANSIENT_BYTES = 2 * 32 * 2**20  # RoPE frequencies and one frozen linear output
HEAD_CHUNK_ROWS = 512
CALIBRATED_ROUTER = (256, 8)  # experts and top-k that the router state was calibrated at


class PerRow(NamedTuple):
    """Named bytes a row of one stage, and their sum."""

    parts: tuple[tuple[str, int], ...]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Bytes a row, by layer kind for what a stage holds beside its routed experts.

    `mirrored_rows` stand beside what the attention executor keeps, `gradient_rows` hold a flat rate for it at CP > 1.
    """

    hidden: int
    executor: ExecutorRates
    router_is_extrapolated: bool
    gradient_rows: dict[LayerKind, PerRow]
    mirrored_rows: dict[LayerKind, PerRow]
    forward_rows: dict[LayerKind, PerRow]
    shared_return_gradient: int
    shared_return_forward: int
    routed_gradient: tuple[RoutedStage, ...]
    routed_forward: tuple[RoutedStage, ...]
    kinds: tuple[LayerKind, ...]
    last_of_kind: dict[LayerKind, int]
    all_moe: bool


def expert_rank(adapter: Adapter | None) -> int:
    """The LoRA rank of the routed experts, 0 without."""
    return adapter.expert_rank if adapter is not None and "experts" in adapter.targets else 0


@lru_cache(maxsize=256)
def rates_of(shape: DecoderShape, ep: int, cp: int, rank: int) -> Rates:
    """Rates at EP size `ep`, context-parallel size `cp` and expert LoRA rank `rank`."""
    hidden, kinds = BYTES_PER_ELEMENT * shape.hidden_size, shape.kinds
    shared_return = hidden if shape.shared_ffn_size else 0
    last_of_kind = {kind: layer for layer, kind in enumerate(kinds)}
    return Rates(
        hidden=hidden,
        executor=executor_rates(shape),
        router_is_extrapolated=router_state_bytes(shape, ep=ep)[1],
        gradient_rows={kind: _gradient_row(shape, kind, ep=ep, cp=cp, mirrored=False) for kind in last_of_kind},
        mirrored_rows={kind: _gradient_row(shape, kind, ep=ep, cp=cp, mirrored=True) for kind in last_of_kind},
        forward_rows={kind: _forward_row(shape, kind) for kind in last_of_kind},
        shared_return_gradient=shared_return * (2 if shape.shared_gated else 1),
        shared_return_forward=shared_return,
        routed_gradient=routed_stages(shape, ep=ep, rank=rank, gradient=True),
        routed_forward=routed_stages(shape, ep=ep, rank=rank, gradient=False),
        kinds=kinds,
        last_of_kind=last_of_kind,
        all_moe=len(shape.moe_layers) == shape.num_layers,
    )


def mixer_bytes(shape: DecoderShape, mixer: Mixer, *, cp: int, mirrored: bool) -> int:
    """b (2H + 7A + 3KV), + b (3A + 2KV) at CP > 1 where the executor isn't mirrored; or a GDN layer's."""
    if mixer == "gdn":
        return gdn_mixer_bytes(shape, cp=cp)
    flat = 0 if mirrored or cp == 1 else 3 * shape.query_width + 2 * shape.kv_width
    return attention_own_bytes(shape) + BYTES_PER_ELEMENT * (2 * shape.hidden_size + flat)


def _gradient_row(shape: DecoderShape, kind: LayerKind, *, ep: int, cp: int, mirrored: bool) -> PerRow:
    parts = [
        ("mixer", mixer_bytes(shape, kind.mixer, cp=cp, mirrored=mirrored)),
        ("residual_norm", 2 * shape.hidden_size * BYTES_PER_ELEMENT),
    ]
    if kind.feed_forward == "dense":
        parts.append(("dense_ffn", dense_ffn_bytes(shape)))
    else:
        parts.append(("router_state", router_state_bytes(shape, ep=ep)[0]))
        parts.append(("shared_expert", 3 * shape.shared_ffn_size * BYTES_PER_ELEMENT))
    return _per_row(parts)


def _forward_row(shape: DecoderShape, kind: LayerKind) -> PerRow:
    dense = [("dense_ffn", dense_ffn_bytes(shape))] if kind.feed_forward == "dense" else []
    return _per_row([("no_gradient_hidden", 4 * shape.hidden_size * BYTES_PER_ELEMENT), *dense])


def _per_row(parts: list[tuple[str, int]]) -> PerRow:
    return PerRow(tuple(parts), sum(each for _, each in parts))


def dense_ffn_bytes(shape: DecoderShape) -> int:
    """b (3F + H): FC1 gate and up, GLU, FC2 output (derived, not published)."""
    return BYTES_PER_ELEMENT * (3 * shape.dense_ffn_size + shape.hidden_size)


def attention_own_bytes(shape: DecoderShape) -> int:
    """b (7A + 3KV), 5A without an output gate: an attention layer's activations beside the executor's (tensors inferred)."""
    return BYTES_PER_ELEMENT * ((7 if shape.output_gate else 5) * shape.query_width + 3 * shape.kv_width)


def gdn_mixer_bytes(shape: DecoderShape, *, cp: int) -> int:
    """b (H + 2 Kw + 2 Hv dk + 6V + 64 Hv), six value-width tensors; + b (H + V) for the layout exchange at CP > 1."""
    if shape.gdn is None:
        return 0
    gdn, hidden = shape.gdn, shape.hidden_size
    heads = gdn.num_value_heads
    elements = hidden + 2 * gdn.key_width + 2 * heads * gdn.key_head_dim + 6 * gdn.value_width + 64 * heads
    exchange = hidden + gdn.value_width if cp > 1 else 0
    return BYTES_PER_ELEMENT * (elements + exchange)


def router_state_bytes(shape: DecoderShape, *, ep: int) -> tuple[int, bool]:
    """(13 E + 4 at EP 1, 14 E + 16 otherwise; whether that is beyond what was calibrated, EP 1 and 2 at 256 experts, top-8)."""
    calibrated = (shape.num_experts, shape.top_k) == CALIBRATED_ROUTER
    if ep == 1 and calibrated:
        return 13 * shape.num_experts + 4, False
    return 14 * shape.num_experts + 16, not (calibrated and ep == 2)


def head_chunk_bytes(shape: DecoderShape, *, projected_rows: int, targets: bool) -> int:
    """Chunks of at most 512 projected rows by vocabulary: three while targets are backpropagated, one for plain logits."""
    chunk = min(projected_rows, HEAD_CHUNK_ROWS) * shape.vocab_size * BYTES_PER_ELEMENT
    return chunk * (3 if targets else 1)
