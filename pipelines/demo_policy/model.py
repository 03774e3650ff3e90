"""The demo policy's architecture, its losses and the experts it uses."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from pipelines.demo_policy.text import MAX_POSITIONS, SPECIAL_TOKENS, Ids, encode, first_turn_tokens
from routing.core.errors import CheckFailedError

# Letters in tensor names: T tokens, B windows, E experts, L layers.

VOCAB_SIZE = 4096
# The rotary base of the Qwen3.5 models (github.com/THUDM/slime, scripts/models/qwen3.5-27B.sh).
ROPE_THETA = 10_000_000.0
HEAD_CHUNK_TOKENS = 2048  # Logits are VOCAB_SIZE floats a token: never all at once.


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Mean loss of predicting every token but the first of each trajectory, in nats, and the routed rows [layer, expert]."""

    loss: float
    loss_after_first_turn: float  # the first turn is mostly the policy prompt, which runs share
    routed_rows_LE: npt.NDArray[np.int64]


def demo_config(vocab_size: int = VOCAB_SIZE) -> Qwen3_5MoeTextConfig:
    """Qwen3.5-MoE's text architecture at about 2 million parameters: 8 layers, GDN and attention 3:1, 64 experts, top-8."""
    return Qwen3_5MoeTextConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=32,
        num_experts=64,
        num_experts_per_tok=8,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": 0.25},
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
    )


@contextmanager
def router_outputs(model: Qwen3_5MoeForCausalLM) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Collects (logits_TE, expert ids of the tokens) of every layer's router, in layer order, one forward pass at a time."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    gates = [layer.mlp.gate for layer in model.model.layers]
    handles = [gate.register_forward_hook(lambda _module, _args, out: seen.append((out[0], out[2]))) for gate in gates]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def balance_loss(routers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Sum over layers of E * sum over experts of (share of routed rows * mean router probability); 1.0 a layer when even.

    Per layer as in the Switch Transformer (arXiv 2101.03961, eq. 4). transformers' own loss pools the layers first, which
    an uneven layer can hide in.
    """
    losses = []
    for logits_TE, expert_ids in routers:
        num_experts = logits_TE.shape[-1]
        share_E = torch.bincount(expert_ids.flatten(), minlength=num_experts) / expert_ids.numel()
        losses.append(num_experts * (share_E * logits_TE.softmax(dim=-1).mean(dim=0)).sum())
    return torch.stack(losses).sum()


def next_token_losses(model: Qwen3_5MoeForCausalLM, windows_BT: torch.Tensor) -> torch.Tensor:
    """[B, T - 1] nats of every token but the first of its window."""
    hidden = model.model(input_ids=windows_BT, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
    targets = windows_BT[:, 1:].flatten()
    chunks = zip(hidden.split(HEAD_CHUNK_TOKENS), targets.split(HEAD_CHUNK_TOKENS), strict=True)
    losses = [F.cross_entropy(model.lm_head(states), words, reduction="none") for states, words in chunks]
    return torch.cat(losses).view(len(windows_BT), -1)


def routed_rows(routers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> npt.NDArray[np.int64]:
    """[layer, expert] (token, expert) pairs of one forward pass."""
    return np.stack([torch.bincount(ids.flatten(), minlength=logits_TE.shape[-1]).numpy() for logits_TE, ids in routers])


@torch.no_grad()
def evaluate(model: Qwen3_5MoeForCausalLM, held_out: Sequence[Ids]) -> HeldOut:
    """Held-out losses and routed rows over whole trajectories, one at a time, as `routing measure` runs them."""
    losses, losses_after = [], []
    rows_LE = np.zeros((model.config.num_hidden_layers, model.config.num_experts), dtype=np.int64)
    with router_outputs(model) as routers:
        for ids in held_out:
            routers.clear()
            losses.append(next_token_losses(model, torch.from_numpy(ids)[None])[0])
            losses_after.append(losses[-1][max(0, first_turn_tokens(ids) - 1) :])
            rows_LE += routed_rows(routers)
    return HeldOut(
        loss=torch.cat(losses).double().mean().item(),
        loss_after_first_turn=torch.cat(losses_after).double().mean().item(),
        routed_rows_LE=rows_LE,
    )


def entropies(routed_rows_LE: npt.NDArray[np.int64]) -> list[float]:
    """Entropy of each layer's shares of routed rows over its experts, in nats; log(num_experts) is even."""
    shares_LE = routed_rows_LE / routed_rows_LE.sum(axis=1, keepdims=True)
    return [float(-sum(p * math.log(p) for p in shares_E if p > 0)) for shares_E in shares_LE.tolist()]


@torch.no_grad()
def round_to_bf16(model: Qwen3_5MoeForCausalLM) -> None:
    """Rounds float32 weights to what a BF16 file can hold, so that what is evaluated is what is shipped."""
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16().float())


def save_policy(model: Qwen3_5MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes config, BF16 weights and tokenizer, reads them back and compares. Raises CheckFailedError where they differ."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    read, info = AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if any(info[kind] for kind in ("missing_keys", "mismatched_keys", "error_msgs")):
        raise CheckFailedError(f"{folder}: the saved weights do not load as they were: {info}")
    written = model.model.state_dict()
    unequal = [name for name, weight in read.state_dict().items() if not torch.equal(weight, written[name])]
    if unequal:
        raise CheckFailedError(f"{folder}: read back other weights than were saved: {', '.join(unequal[:3])}")
    probe = '<|im_start|>user\nHello, order #W1234567 {"a": [1.5, null]}\n\n<|im_end|>\n'
    if AutoTokenizer.from_pretrained(folder)(probe)["input_ids"] != encode(tokenizer, [probe])[0].tolist():
        raise CheckFailedError(f"{folder}: the saved tokenizer splits text otherwise than the one that was trained")
