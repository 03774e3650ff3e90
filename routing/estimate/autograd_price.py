"""A wave on the `transformers` stack in, an estimate out; what its traces don't cover is refused with a sentence."""

from decimal import Decimal

from routing.core.fields import FieldError
from routing.core.layers import DecoderShape
from routing.core.observed import Caution
from routing.core.wave import Adapter, Wave
from routing.estimate.autograd import Instant, Sizes, peak
from routing.estimate.lookup import AllowanceBook, AllowanceUsed
from routing.estimate.price import with_margin
from routing.estimate.result import Estimate, RankTotal, Term

_TRACED = "traced from the library"
AUTOGRAD_SOURCES = {
    "boundaries": f"{_TRACED}: H b a token and layer still to go",
    "incoming_gradient": f"{_TRACED}: H b a token, once",
    "norms": f"{_TRACED}: two norms, input in float32 and output; the last norm beside the head",
    "mixer": f"{_TRACED}: what attention saves; GDN as its fused kernels save (mirrored), or PyTorch's code (fallback)",
    "gdn_chunks": f"{_TRACED}: GDN by chunk of 64 tokens: two states in the fused backward (mirrored), the fallback's scan",
    "mixer_backward": f"{_TRACED}: what the mixer's backward makes; float32 queries, GDN mirrored",
    "norm_backward": f"{_TRACED}: four float32 copies of the hidden row, in the backward of the second norm",
    "router_state": f"{_TRACED}: probabilities in float32, top-k",
    "router_logits": f"{_TRACED}: E b a token, while the layer is computed again",
    "shared_expert": f"{_TRACED}: 4 Fs b a token",
    "shared_expert_output": f"{_TRACED}: H b a token, while the layer is computed again",
    "shared_expert_gradients": f"{_TRACED}: 2 H b a token, while the routed experts are backpropagated",
    "residual": f"{_TRACED}: H b a token",
    "routed_rows": f"{_TRACED}: pairs of a token and an expert, at the instant that binds",
    "adapter_gradients": f"{_TRACED}: LoRA gradients of the layers above, and of this one's linears",
    "lm_head": f"{_TRACED}: three float32 copies of 512 rows of logits, of all rows where logits are an output",
    "positions": f"{_TRACED}: cosine and sine of a whole head, position and label ids",
    "block_rounding": "512 bytes a block, more blocks than are ever alive",
}
_NO_ROWS = ("adapter_gradients", "block_rounding")
AUTOGRAD_OMITTED = (
    "weights, adapters, optimizer state, token ids: the baseline",
    "what one kernel allocates and frees by itself: cuBLAS workspaces, the flash backward's float32 accumulator",
    "fragmentation of the caching allocator, the CUDA context",
    "kernels from the Hugging Face hub (use_kernels): the gated norm in one kernel keeps less",
)


def price_autograd(wave: Wave, shape: DecoderShape, book: AllowanceBook, *, outside_bytes: int) -> Estimate:
    """The bytes of `wave`, one sequence or packed batch without padding; FieldError for what was not traced."""
    adapter = _require_traced(wave, shape)
    group = wave.groups[0]
    tokens = group.attention_rows[0]
    linears = any(target != "experts" for target in adapter.targets)
    sizes = Sizes(
        tokens=tokens,
        pairs=tokens * shape.top_k,
        linear_rank=adapter.expert_rank if linears else 0,
        expert_rank=adapter.expert_rank if "experts" in adapter.targets else 0,
        full_head=bool(wave.outputs),
        pending_gradients=adapter.pending_gradients and wave.terms.adapter_gradients,
        fused_gdn=wave.gdn_kernels == "fused",
    )
    instant = peak(shape, sizes)
    used = book.find(ep=1, rows=tokens, mode="fitted", strict=False)
    total = instant.num_bytes
    adapters = sum(part.num_bytes for part in instant.parts if part.name == "adapter_gradients")
    return Estimate(
        total_bytes=total,
        floor_bytes=total,
        walk_bytes=total,
        required_bytes=with_margin(total) + outside_bytes,
        total_without_hybridep_bytes=total,
        hybridep_bytes=0,
        outside_bytes=outside_bytes,
        binding_rank=0,
        binding_layer=instant.layer,
        terms=_terms(instant),
        allowance=AllowanceUsed(
            ep=1, batch_tokens=used.batch_tokens, value=used.value, layer="all", status=used.status, warnings=()
        ),
        ranks=(RankTotal(rank=0, without_adapters_bytes=total - adapters, adapter_extra_bytes=adapters),),
        floor_and_walk=f"floor and walk are one on this stack, the largest instant of the step: {instant.name}",
        omitted=AUTOGRAD_OMITTED,
        cautions=tuple(_cautions(wave, adapter, shape)),
    )


def _terms(instant: Instant) -> tuple[Term, ...]:
    return tuple(
        Term(
            name=part.name,
            rank=0,
            layer=instant.layer,
            rows=part.rows if part.name not in _NO_ROWS else None,
            bytes_per_row=Decimal(part.bytes_per_row) if part.name not in _NO_ROWS else None,
            bytes=part.num_bytes,
            source=AUTOGRAD_SOURCES[part.name],
        )
        for part in instant.parts
        if part.num_bytes
    )


def _cautions(wave: Wave, adapter: Adapter, shape: DecoderShape) -> list[Caution]:
    found = []
    if shape.has_gdn and wave.gdn_kernels == "fused":
        text = (
            "GDN layers as the fused kernels save (mirrored, not measured); without them a step takes more: gdn_kernels: fallback"
        )
        found.append(Caution(code="gdn_mirrored", message=text))
    targets = set(adapter.targets) - {"experts"}
    if targets and not linears_of(shape) <= targets:
        text = "LoRA on some linears is priced as LoRA on all of a layer's"
        found.append(Caution(code="linears_as_all", message=text))
    return found


def linears_of(shape: DecoderShape) -> set[str]:
    """The adapted linears that the shape has."""
    gdn = {"in_proj_qkv", "in_proj_z", "out_proj"} if shape.has_gdn else set()
    shared = {"gate_proj", "up_proj", "down_proj"} if shape.shared_ffn_size else set()
    return {"q_proj", "k_proj", "v_proj", "o_proj"} | gdn | shared


def _require_traced(wave: Wave, shape: DecoderShape) -> Adapter:
    """The adapter of a wave that the traces cover."""
    stack = "on the transformers stack"
    for name in ("ep", "cp"):
        if getattr(wave.topology, name) > 1:
            raise FieldError(("topology", name), f"{getattr(wave.topology, name)} is not priced {stack}; {name}: 1 is")
    if len(wave.groups) > 1:
        raise FieldError(("groups",), f"{len(wave.groups)} groups are not priced {stack}; price each by itself")
    group = wave.groups[0]
    if not group.gradient:
        raise FieldError(("groups", 0, "gradient"), f"a group without gradient is not priced {stack}")
    if group.gdn_rows not in (None, group.attention_rows):
        raise FieldError(("groups", 0, "gdn_rows"), f"other rows than attention_rows, {stack} both are one layout")
    if wave.adapter is None or not wave.adapter.expert_rank:
        raise FieldError(("adapter",), f"none, or of rank 0; a step {stack} is priced with LoRA")
    if "experts" in wave.adapter.targets and wave.adapter.expert_rank % 8:
        text = f"{wave.adapter.expert_rank} {stack}: grouped products take rows of whole 16 bytes, ranks that 8 divides"
        raise FieldError(("adapter", "expert_rank"), text)
    if "lm_head" in wave.adapter.targets:
        raise FieldError(("adapter", "targets"), f"lm_head is not priced {stack}")
    if wave.head is not None and (not wave.head.targets or wave.head.projected_rows != group.attention_rows[0]):
        raise FieldError(("head",), f"{stack} the loss is taken over every row: leave it out")
    if wave.outputs and (len(wave.outputs), wave.outputs[0].kind, wave.outputs[0].rows) != (1, "logits", group.attention_rows[0]):
        raise FieldError(("outputs",), f"{stack} only logits of every row are priced (the head not in chunks)")
    for name in ("te_workspaces_held", "held_hybridep_rows", "observed", "layer_inputs"):
        if getattr(wave, name):
            raise FieldError((name,), f"means nothing {stack}: leave it out")
    if group.attention_stages is not None:
        raise FieldError(("groups", 0, "attention_stages"), f"a context-parallel executor's, {stack} cp: 1 is priced")
    _require_class(shape)
    if wave.gdn_kernels == "fallback" and not shape.has_gdn:
        raise FieldError(("gdn_kernels",), f"fallback, and {shape.name} has no GDN layer: leave it out")
    return wave.adapter


def _require_class(shape: DecoderShape) -> None:
    all_moe = len(shape.moe_layers) == shape.num_layers
    plain = not (shape.has_gdn or shape.output_gate or shape.shared_ffn_size)
    hybrid = shape.has_gdn and shape.output_gate and bool(shape.shared_ffn_size) and shape.shared_gated
    if not all_moe or not (plain or hybrid):
        what = "is of neither class that was traced: Qwen3-MoE (attention, no shared expert), Qwen3.5-MoE (hybrid, gated)"
        raise FieldError(("model",), f"{shape.name} {what}")
