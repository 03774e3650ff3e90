"""The MoE families of transformers: a tiny configuration of each and what is known of it; `make docs` lists them.

test_families.py holds layers, shared experts and implementations against the models; router and mixer are read from their code.
"""

from dataclasses import dataclass, field

from tests.measure.tiny import tiny_fields

TRIED_WITH = "5.24.0"  # of transformers; with another one, a family that it lacks is skipped

_LATENT = {"num_key_value_heads": 4}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_FUSED = ("eager", "grouped_mm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A `model_type`: how it routes, its layers with experts (of 4), its walk, and the fields that `TINY` gets wrong for it."""

    router: str
    mixer: str = "attention"
    layers: tuple[int, ...] = (0, 1, 2, 3)
    shared: bool = False
    implementations: tuple[str, ...] = _FUSED
    walk: str = "prefix-once"
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
    "bailing_hybrid": Family(
        router=_GROUPS,
        mixer="linear and latent attention",
        layers=_DENSE_FIRST,
        shared=True,
        changes={"layer_group_size": 2, **_LATENT},
    ),
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
    "deepseek_ocr2": Family(
        router="softmax, groups",
        layers=_DENSE_FIRST,
        shared=True,
        changes={
            "text_config": {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "topk_method": "group_limited_greedy"}
        },
    ),
    "deepseek_v2": Family(
        router="softmax, groups",
        mixer="latent attention",
        layers=_DENSE_FIRST,
        shared=True,
        changes={**_LATENT, "topk_method": "group_limited_greedy"},
    ),
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
    "inkling_text": Family(router=_BIAS, mixer="attention, convolutions", shared=True, walk="whole"),
    "inkling2_text": Family(router=_BIAS, mixer="attention, convolutions"),
    "jamba": Family(
        router=_SOFTMAX,
        mixer="Mamba, attention",
        layers=(1, 3),
        walk="whole",
        changes={"attn_layer_period": 2, "attn_layer_offset": 1},
    ),
    "kimi_linear": Family(
        router=_GROUPS,
        mixer="linear and latent attention",
        layers=_DENSE_FIRST,
        shared=True,
        changes={**_LATENT, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
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
    "minimax_m3_vl_text": Family(
        router=_BIAS,
        mixer="attention, some on chosen blocks",
        shared=True,
        changes={
            "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
            "index_n_heads": 2,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        },
    ),
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
    "qwen3_5_moe": Family(router=_SOFTMAX, mixer="gated delta net, attention", shared=True),
    "qwen3_moe": Family(router=_SOFTMAX),
    "qwen3_next": Family(router=_SOFTMAX, mixer="gated delta net, attention", shared=True),
    "qwen3_omni_moe_thinker": Family(router=_SOFTMAX),
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
    "step3p7": Family(
        router=_BIAS,
        layers=(3,),
        shared=True,
        implementations=("eager",),
        changes={"text_config": {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16}},
    ),
    "unlimited_ocr": Family(
        router="softmax, groups",
        layers=_DENSE_FIRST,
        shared=True,
        changes={"text_config": {"topk_method": "group_limited_greedy"}},
    ),
}


def tiny_config(model_type: str, **more):
    """A configuration of 4 layers, 8 experts and a width of 32, towers smaller; KeyError where transformers lacks the type."""
    from transformers import CONFIG_MAPPING

    changes = FAMILIES[model_type].changes if model_type in FAMILIES else {}
    kind = CONFIG_MAPPING[model_type]
    return kind(**tiny_fields(kind, {**changes, **more}))
