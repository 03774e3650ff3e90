"""One LoRA training step of a real transformers model, under FakeTensorMode on fake CPU: no weights, no arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.qwen3_moe import modeling_qwen3_moe

from pipelines.trace import experts, gdn
from pipelines.trace.tracker import BLOCK_BYTES, StorageTracker

CHUNK_ROWS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a step computes; `routed_rows` null is tokens x k, `linear_rank` and `expert_rank` 0 is no LoRA there."""

    num_tokens: int
    routed_rows: int | None = None
    linear_rank: int = 8
    expert_rank: int = 0
    head: Literal["chunked", "full"] = "chunked"
    gdn: Literal["mirrored", "fallback"] = "mirrored"


class LoraLinear(nn.Module):
    """base(x) + up(down(x)), as peft computes it with adapters in the base's dtype and no dropout."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        like: dict[str, Any] = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.down = nn.Linear(base.in_features, rank, **like)
        self.up = nn.Linear(rank, base.out_features, **like)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The adapted product; the scale is in `up`, as after a merge of alpha / r."""
        product: torch.Tensor = self.base(rows)
        return product + self.up(self.down(rows))


LINEARS = (
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("in_proj_qkv", "in_proj_z", "out_proj"),
    *("gate_proj", "up_proj", "down_proj"),
)


def build(config: Any, step: Step) -> nn.Module:
    """The model of `config`, frozen, in BF16 on the current default device, with LoRA where `step` has it, in training mode."""
    config._attn_implementation = "sdpa"
    config._experts_implementation = experts.NAME
    ALL_EXPERTS_FUNCTIONS.register(experts.NAME, experts.experts_forward)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.requires_grad_(False)
    for module in list(model.modules()):
        if hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, nn.Parameter):
            _adapt_experts(module, step)
        for name, child in list(module.named_children()):
            if step.linear_rank and name in LINEARS and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child, step.linear_rank))
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False})
    built: nn.Module = model
    return built


def run(model: Any, step: Step, ids: torch.Tensor) -> None:
    """Forward and backward over one sequence `ids` (1, T); gradients stay on the adapters."""
    hybrid = "linear_attention" in (getattr(model.config, "layer_types", None) or ())
    mask = {"full_attention": None, "linear_attention": None} if hybrid else None
    arguments = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if step.head == "full":
        model(labels=ids, **arguments).loss.backward()
        return
    hidden = model.model(**arguments).last_hidden_state
    chunks = zip(hidden[0].split(CHUNK_ROWS), ids[0].split(CHUNK_ROWS), strict=True)
    losses = [checkpoint(_chunk_loss, model.lm_head, *one, use_reentrant=False, preserve_rng_state=False) for one in chunks]
    del hidden, chunks
    torch.stack(losses).sum().backward()


def _chunk_loss(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(hidden).float(), labels, reduction="sum")


def trace(config: Any, step: Step, *, block_bytes: int = BLOCK_BYTES) -> StorageTracker:
    """What one step of `config` allocates above weights, adapters and token ids, under FakeTensorMode."""
    kernels = gdn.mirrored() if step.gdn == "mirrored" else nullcontext()
    with FakeTensorMode(), kernels, _no_mask():
        model = build(config, step)
        ids = torch.zeros(1, step.num_tokens, dtype=torch.int64)
        tracker = StorageTracker([*model.parameters(), *model.buffers(), ids], block_bytes=block_bytes)
        with tracker:
            run(model, step, ids)
    return tracker


@contextmanager
def _no_mask() -> Iterator[None]:
    """Real tensors without padding get no mask; under a dispatch mode the library takes itself to be exported: T x T."""
    module: Any = modeling_qwen3_moe
    kept, module.create_causal_mask = module.create_causal_mask, lambda **_: None
    try:
        yield
    finally:
        module.create_causal_mask = kept


def _adapt_experts(module: Any, step: Step) -> None:
    module.routed_rows = step.routed_rows
    if not step.expert_rank:
        return
    for name, adapter in (("gate_up_proj", "gate_up_adapter"), ("down_proj", "down_adapter")):
        weight = getattr(module, name)
        num_experts, width_out, width_in = weight.shape
        setattr(module, adapter, experts.ExpertAdapter(num_experts, width_in, width_out, step.expert_rank, weight))
