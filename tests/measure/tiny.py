"""Tiny configurations of any family: one table of fields by the names that families give them."""

import dataclasses

NUM_LAYERS, NUM_EXPERTS, TOP_K, MAX_POSITIONS = 4, 8, 2, 256

# The fields of a tiny model by the names that families give them; each takes those that it has.
TINY = {
    "vocab_size": 96,
    "unpadded_vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": MAX_POSITIONS,
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
    "index_n_heads": 16,  # with 2, all products of a key are often negative, and its score ties at 0 with others
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
# The same for a vision or audio tower of a model whose decoder AutoModel doesn't build alone; no picture enters it.
TOWER = {
    **dict.fromkeys(("hidden_size", "d_model", "intermediate_size", "encoder_ffn_dim", "mlp_dim", "output_channels"), 16),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "num_heads", "encoder_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("out_hidden_size", "output_dim"), 32),
    "image_size": 28,
    "patch_size": 14,
    "num_position_embeddings": 16,
    "downsample_hidden_size": 16,
    "downsample_channels": [16, 16],
    "deepstack_visual_indexes": [0],
    "global_attn_indexes": [0],
    "window_size": 7,
}


def tiny_fields(kind, changes, *, tiny=TINY):
    """The fields of a configuration class and of its parts, with `changes`."""
    known = {one.name for one in dataclasses.fields(kind)} | set(kind.attribute_map)
    parts = {
        name: tiny_fields(part, changes.get(name, {}), tiny=TINY if name == "text_config" else TOWER)
        for name, part in kind.sub_configs.items()
    }
    return {**{name: value for name, value in tiny.items() if name in known}, **changes, **parts}
