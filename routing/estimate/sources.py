"""Where each term's formula is from, what no term holds, and the warnings of a wave."""

from collections.abc import Iterator

from routing.core.layers import DecoderShape
from routing.core.observed import Caution
from routing.core.wave import Wave
from routing.estimate.executor import FLASH_BLOCK_HEAD_DIM
from routing.estimate.layout import COARSE_CP
from routing.estimate.rates import Rates

_FLOOR = "published checkpoint floor"
SOURCES = {
    "outputs": f"{_FLOOR}: 4 B a target logprob, 12 B a top-k entry, V b a logits row, H b a hidden row",
    "boundaries": f"{_FLOOR}: H b a row and layer, in the layout that the layer's input arrives in",
    "incoming_gradient": f"{_FLOOR}: H b a row of the busiest rank",
    "mixer": f"{_FLOOR}; the tensors behind it are inferred",
    "executor_retention": "published sizes of what the context-parallel executor saves, stage by stage",
    "residual_norm": f"{_FLOOR}: 2 H b a row",
    "router_state": "calibrated at 256 experts, top-8, EP 1 and 2",
    "shared_expert": f"{_FLOOR}: 3 Fs b a row",
    "shared_expert_return": f"{_FLOOR}: H b a row, 2 H b gated in gradient, max(m, R) rows",
    "routed_stage": f"{_FLOOR}: the largest stage of the routed experts at the allowance",
    "dense_ffn": "derived, not published: b (3F + H) a row",
    "no_gradient_hidden": f"{_FLOOR}: 4 H b a row",
    "te_workspaces": "fixed: 5 cuBLAS workspaces of 32 MiB + 1 KiB",
    "lm_head": f"{_FLOOR}: chunks of at most 512 rows by vocabulary, 3 with targets",
    "cold_transients": "fixed: RoPE frequencies and one frozen linear output, 32 MiB each",
    "adapter_gradients": f"{_FLOOR}: pending LoRA gradients above released boundaries, paired with their rank",
    "adapter_gradients_covered": "the part of them that another rank's total without any covers already",
    "hybridep_buffer": "published formula of the DeepEP hybrid-ep allocator, outside PyTorch",
}

OMITTED = (
    "memory outside PyTorch beyond the HybridEP buffer: 2.76 GB grew once where 1.05 GB was priced (published); --outside-bytes",
    "weights, adapters, optimizer state: the baseline",
    "activations of LoRA on linears other than the routed experts",
)
OMITTED_GDN = "GDN recurrent and chunk states: about 2.1 MB a segment and layer, and Hv dk dv / 64 elements a row"


def omitted_of(shape: DecoderShape) -> tuple[str, ...]:
    """What is alive and in no term."""
    return (*OMITTED, OMITTED_GDN) if shape.has_gdn else OMITTED


def wave_cautions(wave: Wave, shape: DecoderShape, rates: Rates) -> Iterator[Caution]:
    """What a reader must know of formulas that were stretched, or of rows that contradict each other."""
    topology = wave.topology
    if topology.ep > 2:
        yield Caution(code="unmeasured_ep", message=f"ep={topology.ep}: no published memory run at this EP")
    if topology.cp >= COARSE_CP:
        text = f"cp={topology.cp}: every rank at the busiest rank's rows, stages not mirrored; no published run at this CP"
        yield Caution(code="coarse_floor", message=text)
    if rates.router_is_extrapolated:
        text = f"router state at {shape.num_experts} experts, top-{shape.top_k}, ep={topology.ep}: beyond its calibration"
        yield Caution(code="router_extrapolated", message=text)
    staged = any(group.attention_stages is not None for group in wave.groups)
    if staged and shape.head_dim != FLASH_BLOCK_HEAD_DIM:
        text = f"the executor's flash block at head dim {shape.head_dim} is taken to be that at {FLASH_BLOCK_HEAD_DIM}"
        yield Caution(code="flash_block_extrapolated", message=text)
    for at, group in enumerate(wave.groups):
        if group.gdn_rows is not None and sum(group.gdn_rows) != sum(group.attention_rows):
            text = f"groups[{at}]: {sum(group.gdn_rows)} GDN rows over all ranks, {sum(group.attention_rows)} attention rows"
            yield Caution(code="layouts_differ", message=text)
