"""Tiny random policies with a byte-level tokenizer, written as checkpoint folders."""

import shutil
from pathlib import Path

import torch

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "\n{% endfor %}"
)


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens, ids 0 to 255, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def tiny_config(**changes):
    """A qwen3_5_moe text model of 4 layers (GDN, GDN, GDN, attention), 8 experts, top-2."""
    from transformers import Qwen3_5MoeTextConfig

    values = {
        "vocab_size": 256,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131_072,
        "initializer_range": 0.3,  # spread router logits, so that routing is uneven and free of ties
    }
    return Qwen3_5MoeTextConfig(**{**values, **changes})


def write_tiny_policy(folder: Path, *, seed: int = 0, config=None) -> Path:
    """A random causal LM of `config` in float32 safetensors, and its tokenizer."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config or tiny_config(), dtype=torch.float32)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def changed_policy(policy: Path, folder: Path, name: str, rows: int | slice, value: float) -> Path:
    """A copy of `policy` in `folder` with `rows` of the one weight whose name holds `name` set to `value`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(policy, folder)
    weights = load_file(folder / "model.safetensors")
    (found,) = (one for one in weights if name in one)
    weights[found][rows] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
