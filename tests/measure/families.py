"""The MoE families of transformers: a tiny configuration of each and what is known of it; `make docs` lists them.

test_families.py holds layers, shared experts and implementations against the models; router and mixer are read from their code.
"""

import dataclasses
from dataclasses import dataclass, field

TRIED_WITH = "5.24.0"  # of transformers; with another one, a family that it lacks is skipped
NUM_LAYERS, NUM_EXPERTS, TOP_K = 4, 8, 2

# Model types that AutoModel builds only with their vision or audio towers, which tiny configurations don't shrink.
NOT_TRIED = ("deepseek_ocr2", "qwen3_omni_moe_thinker", "step3p7", "unlimited_ocr")

# The fields of a tiny model by the names that families give them; each takes those that it has.
TINY = {
    "vocab_size": 96,
    "unpadded_vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 256,
    **dict.fromkeys(("hidden_size", "d_model", "moe_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers"), NUM_LAYERS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), NUM_EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts", "moe_top_k"), TOP_K),
    "intermediate_size": 24,
    **dict.fromkeys(("moe_intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(
        (
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "share_expert_dim",
        ),
        16,
    ),
    "n_shared_experts": 1,
    **dict.fromkeys(("n_group", "num_expert_group"), 2),
    "topk_group": 1,
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 1),
    # Attention, latent attention, indexers
    **dict.fromkeys(("num_attention_heads", "n_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    "o_groups": 2,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 16,
    "hidden_size_per_layer_input": 8,
    "rel_extent": 32,
    "d_rel": 4,
    # Linear attention, Mamba, convolutions
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_heads", "mamba_n_heads", "mamba_num_heads", "mamba_dt_rank"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    "conv_kernel_size": 3,
}
_LATENT = {"num_key_value_heads": 4}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_FUSED = ("eager", "grouped_mm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A `model_type`: how it routes, its decoder layers with experts (of 4), and the fields that `TINY` gets wrong for it."""

    router: str
    mixer: str = "attention"
    layers: tuple[int, ...] = (0, 1, 2, 3)
    shared: bool = False
    implementations: tuple[str, ...] = _FUSED
    changes: dict = field(default_factory=dict)


_DENSE_FIRST = (1, 2, 3)
_SOFTMAX = "softmax"
_BIAS = "sigmoid with bias"
_GROUPS = "sigmoid with bias, groups"

FAMILIES = {
    "afmoe": Family(router=_BIAS, layers=_DENSE_FIRST, shared=True),
    "aria_text": Family(router=_SOFTMAX, shared=True),
    "axk1": Family(router=_GROUPS, mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "axk2": Family(router=_GROUPS, mixer="latent attention, indexer", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "bailing_hybrid": Family(router=_GROUPS, mixer="linear and latent attention", layers=_DENSE_FIRST, shared=True),
    "beam": Family(router=_GROUPS, layers=(3,)),
    "cohere2_moe": Family(router="softmax or sigmoid", shared=True, changes={"num_shared_experts": 1}),
    "dbrx": Family(
        router=_SOFTMAX,
        implementations=("eager",),
        changes={
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
            "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 8, "moe_top_k": 2},
        },
    ),
    "deepseek_v2": Family(router="softmax, groups", mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "deepseek_v3": Family(router=_GROUPS, mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "deepseek_v32": Family(router=_GROUPS, mixer="latent attention, indexer", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "deepseek_v4": Family(
        router="hash of the token, then square root of softplus with bias", mixer="compressed attention", shared=True
    ),
    "dots1": Family(router=_GROUPS, layers=_DENSE_FIRST, shared=True),
    "dots3_note_text": Family(
        router=_GROUPS,
        mixer="latent attention, indexer",
        layers=_DENSE_FIRST,
        shared=True,
        changes={
            **_LATENT,
            "shared_experts_intermediate_size": 16,
            "swa_q_lora_rank": 16,
            "swa_kv_lora_rank": 16,
            "swa_head_dim": 16,
            "swa_qk_nope_head_dim": 8,
            "swa_v_head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
        },
    ),
    "ernie4_5_moe": Family(router="softmax with bias", layers=_DENSE_FIRST, shared=True),
    "exaone_moe": Family(router=_GROUPS, layers=_DENSE_FIRST, shared=True),
    "flex_olmo": Family(router=_SOFTMAX),
    "flint": Family(router="sigmoid", layers=(2, 3), shared=True),
    "gemma4_text": Family(router=_SOFTMAX, changes={"enable_moe_block": True, "global_head_dim": 8}),
    "glm4_moe": Family(router=_GROUPS, layers=_DENSE_FIRST, shared=True),
    "glm4_moe_lite": Family(router=_GROUPS, mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "glm4v_moe_text": Family(
        router=_GROUPS,
        layers=_DENSE_FIRST,
        shared=True,
        changes={"rope_parameters": {**_ROPE, "mrope_section": [0, 1, 1], "partial_rotary_factor": 0.5}},
    ),
    "glm5_next_text": Family(
        router=_GROUPS,
        mixer="linear and latent attention, indexer",
        layers=(3,),
        shared=True,
        changes={**_LATENT, "qk_rope_head_dim": 0, "head_dim": 0, "index_kpool": 4},
    ),
    "glm_moe_dsa": Family(router=_GROUPS, mixer="latent attention, indexer", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "gpt_oss": Family(router="softmax over the chosen"),
    "granitemoe": Family(router="softmax over the chosen"),
    "granitemoe_swa": Family(router="softmax over the chosen", shared=True),
    "granitemoehybrid": Family(
        router="softmax over the chosen",
        mixer="Mamba, attention",
        shared=True,
        changes={"layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "granitemoeshared": Family(router="softmax over the chosen", shared=True),
    "hunyuan_v1_moe": Family(router=_SOFTMAX, shared=True),
    "hy_v3": Family(router=_BIAS, layers=_DENSE_FIRST, shared=True),
    "hy_v4": Family(router=_GROUPS, mixer="latent attention, indexer", layers=_DENSE_FIRST, shared=True),
    "hy_v4_vl_text": Family(
        router=_GROUPS,
        mixer="latent attention, indexer",
        layers=_DENSE_FIRST,
        shared=True,
        changes={"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}},
    ),
    "inkling_text": Family(router=_BIAS, mixer="attention, convolutions", shared=True),
    "inkling2_text": Family(router=_BIAS, mixer="attention, convolutions"),
    "jamba": Family(
        router=_SOFTMAX, mixer="Mamba, attention", layers=(1, 3), changes={"attn_layer_period": 2, "attn_layer_offset": 1}
    ),
    "kimi_linear": Family(router=_GROUPS, mixer="linear and latent attention", layers=_DENSE_FIRST, shared=True),
    "kolibri1": Family(router=_BIAS, shared=True),
    "laguna": Family(router=_BIAS, layers=_DENSE_FIRST, shared=True),
    "lara_mini": Family(router=_SOFTMAX, mixer="gated delta net, attention", shared=True),
    "lfm2_moe": Family(
        router=_BIAS,
        mixer="convolutions, attention",
        layers=_DENSE_FIRST,
        changes={"layer_types": ["conv", "full_attention"] * 2},
    ),
    "mellum": Family(router=_SOFTMAX),
    "mimo_v2_flash": Family(router=_GROUPS, layers=_DENSE_FIRST),
    "minimax": Family(router=_SOFTMAX, mixer="lightning attention, attention"),
    "minimax_m2": Family(router=_BIAS),
    "minimax_m3_vl_text": Family(router=_BIAS, shared=True),
    "mistral4": Family(router="softmax, groups", mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "mistral_large4_text": Family(
        router="softmax, groups", mixer="latent attention, indexer", layers=_DENSE_FIRST, shared=True, changes=_LATENT
    ),
    "mixtral": Family(router=_SOFTMAX),
    "muse_spark_text": Family(router=_BIAS),
    "nemotron_h": Family(
        router=_GROUPS,
        mixer="Mamba, attention",
        layers=(1, 3),
        shared=True,
        changes={"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
    ),
    "olmoe": Family(router=_SOFTMAX),
    "phimoe": Family(router="sparse mixer"),
    "qwen2_moe": Family(router=_SOFTMAX, shared=True),
    "qwen3_5_moe_text": Family(router=_SOFTMAX, mixer="gated delta net, attention", shared=True),
    "qwen3_moe": Family(router=_SOFTMAX),
    "qwen3_next": Family(router=_SOFTMAX, mixer="gated delta net, attention", shared=True),
    "qwen3_vl_moe_text": Family(router=_SOFTMAX),
    "qwen4_exp_text": Family(
        router=_SOFTMAX,
        mixer="gated delta net, attention, indexer",
        shared=True,
        changes={
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 16,
            "indexer_compress_ratio": 4,
            "hc_lowrank": 8,
        },
    ),
    "sarvam_mla": Family(router=_GROUPS, mixer="latent attention", layers=_DENSE_FIRST, shared=True, changes=_LATENT),
    "sarvam_moe": Family(router=_GROUPS, layers=_DENSE_FIRST, shared=True),
    "solar_open": Family(router=_GROUPS, shared=True),
}


def tiny_config(model_type: str, **more):
    """The family's configuration with 4 layers, 8 experts and a width of 32; KeyError where transformers lacks it."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    known = {one.name for one in dataclasses.fields(kind)} | set(kind.attribute_map)
    return kind(**{**{name: value for name, value in TINY.items() if name in known}, **FAMILIES[model_type].changes, **more})
