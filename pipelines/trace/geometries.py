"""Five geometries of the two model classes whose steps are priced, at any number of layers.

Two are bundled models; three are others of the same classes: wider, with larger experts, with a top-10 router.
"""

import json
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from routing.core.config_json import decoder_shape
from routing.core.layers import DecoderShape
from routing.store.packaged import packaged

_ATTENTION: Mapping[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936}
_HYBRID: Mapping[str, Any] = {
    "full_attention_interval": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 64,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_attention_heads": 32,
    "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024,
    "vocab_size": 248320,
}
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "attention-h4096-e128-k8-f1536": {
        **_ATTENTION,
        "model_type": "qwen3_moe",
        "hidden_size": 4096,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
    },
    "hybrid-h3072-e256-k8-f1024": {
        **_HYBRID,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 3072,
        "num_hidden_layers": 48,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
    "hybrid-h4096-e512-k10-f1024": {
        **_HYBRID,
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_experts": 512,
        "num_experts_per_tok": 10,
    },
}
GEOMETRIES = ("qwen3-30b-a3b", "qwen3.6-35b-a3b", *_OTHERS)


def config_of(name: str, num_layers: int) -> Any:
    """The transformers config of one of GEOMETRIES."""
    keys = _keys(name, num_layers)
    return AutoConfig.for_model(keys.pop("model_type"), **keys)


def shape_of(name: str, num_layers: int) -> DecoderShape:
    """What the pricing sees of the same config."""
    return decoder_shape(_keys(name, num_layers), name=name, where=name)


def _keys(name: str, num_layers: int) -> dict[str, Any]:
    if name in _OTHERS:
        keys = dict(_OTHERS[name])
    else:
        body = json.loads((packaged("models") / f"{name}.json").read_text())["config"]
        keys = dict(body.get("text_config", body))
    return {**keys, "num_hidden_layers": num_layers}
