"""Decoder shapes out of config.json files: the bundled three, every family that is priced, and what is refused."""

import json

import pytest

from routing.core.config_json import FAMILIES, decoder_shape
from routing.core.errors import InputError
from routing.store.model_shapes import bundled_models, find_shape

QWEN = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
GDN = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
}


def shape_of(**changes):
    config = {name: value for name, value in {**QWEN, **changes}.items() if value is not None}
    return decoder_shape(config, name="tiny", where="config.json")


def refusal(**changes):
    with pytest.raises(InputError) as raised:
        shape_of(**changes)
    message = str(raised.value)
    assert message.startswith("config.json: ")
    assert "\n" not in message
    return message.removeprefix("config.json: ")


def test_the_three_bundled_shapes_are_the_documented_ones():
    names = {name: bundled.shape for bundled in bundled_models() for name in bundled.names}
    assert set(names) == {"qwen3.6-35b-a3b", "qwen3.5-35b-a3b", "qwen3-next-80b-a3b", "qwen3-30b-a3b"}
    qwen36, next80, qwen30 = names["qwen3.6-35b-a3b"], names["qwen3-next-80b-a3b"], names["qwen3-30b-a3b"]
    assert names["qwen3.5-35b-a3b"] is qwen36
    assert (qwen36.num_layers, qwen36.mixers.count("gdn"), qwen36.mixers[:4]) == (40, 30, ("gdn", "gdn", "gdn", "attention"))
    assert (next80.num_layers, next80.mixers.count("gdn")) == (48, 36)
    assert (qwen30.num_layers, qwen30.has_gdn) == (48, False)
    for hybrid in (qwen36, next80):
        assert (hybrid.num_query_heads, hybrid.head_dim, hybrid.num_kv_heads, hybrid.output_gate) == (16, 256, 2, True)
        assert (hybrid.gdn.num_key_heads, hybrid.gdn.key_head_dim) == (16, 128)
        assert (hybrid.gdn.num_value_heads, hybrid.gdn.value_head_dim) == (32, 128)
        assert (hybrid.shared_ffn_size, hybrid.shared_gated, hybrid.hidden_size) == (512, True, 2048)
    assert (qwen30.num_query_heads, qwen30.head_dim, qwen30.num_kv_heads, qwen30.output_gate) == (32, 128, 4, False)
    experts = [(one.num_experts, one.top_k, one.expert_ffn_size) for one in (qwen36, next80, qwen30)]
    assert experts == [(256, 8, 512), (512, 10, 512), (128, 8, 768)]
    assert (qwen30.shared_ffn_size, qwen36.vocab_size, next80.vocab_size, qwen30.vocab_size) == (0, 248320, 151936, 151936)


def test_nested_text_is_read_and_its_neighbours_are_not():
    nested = {
        "model_type": "qwen3_5_moe",
        "vision_config": {"hidden_size": 7},
        "text_config": {**QWEN, "model_type": "qwen3_5_moe_text"},
    }
    nested["text_config"].pop("intermediate_size")
    shape = decoder_shape({**nested, "vocab_size": 7}, name="tiny", where="config.json")
    assert (shape.hidden_size, shape.vocab_size, shape.output_gate) == (64, 1000, True)


def test_dense_layers_are_read_by_each_familys_rule():
    assert shape_of(mlp_only_layers=[0]).moe_layers == (1, 2, 3)
    assert shape_of(decoder_sparse_step=2).moe_layers == (1, 3)
    glm = {"model_type": "glm4_moe", "num_experts": None, "n_routed_experts": 8, "first_k_dense_replace": 3}
    assert shape_of(**glm).moe_layers == (3,)
    assert shape_of(**glm).dense_ffn_size == 128
    ernie = {"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "num_experts": None, "num_experts_per_tok": None}
    assert shape_of(**ernie, moe_layer_start_index=1, moe_layer_end_index=2).moe_layers == (1, 2)
    assert shape_of(**ernie, moe_layer_start_index=1, moe_layer_end_index=-1).moe_layers == (1, 2, 3)


def test_layer_kinds_come_from_a_list_or_an_interval():
    listed = shape_of(model_type="qwen3_next", layer_types=["linear_attention", "full_attention"] * 2, **GDN)
    assert listed.mixers == ("gdn", "attention", "gdn", "attention")
    assert shape_of(model_type="qwen3_next", full_attention_interval=4, **GDN).mixers == ("gdn", "gdn", "gdn", "attention")


def test_shared_experts_are_one_width_gated_where_a_gate_is():
    gated = shape_of(shared_expert_intermediate_size=48)
    assert (gated.shared_ffn_size, gated.shared_gated) == (48, True)
    plain = shape_of(n_shared_experts=2)
    assert (plain.shared_ffn_size, plain.shared_gated) == (64, False)
    assert shape_of().shared_ffn_size == 0


def test_an_absent_head_dim_is_the_quotient_and_absent_kv_heads_are_the_query_heads():
    assert (shape_of().head_dim, shape_of(num_key_value_heads=None).num_kv_heads) == (16, 4)
    assert refusal(num_attention_heads=5) == "lacks head_dim, and 64 / 5 is no whole number"


def test_an_unknown_family_is_refused_naming_the_missing_keys():
    message = refusal(model_type="mystery", vocab_size=None, num_experts=None)
    assert message.startswith("model_type 'mystery' is no family that is priced (qwen2_moe")
    assert message.endswith("missing keys: vocab_size, num_experts or num_local_experts or n_routed_experts or moe_num_experts")
    assert refusal(model_type="mystery").endswith("no key is missing, what its layers keep is unknown")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "qwen3_moe lacks vocab_size"),
        ({"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
        ({"mlp_only_layers": [0], "intermediate_size": None}, "lacks intermediate_size"),
        ({"kv_lora_rank": 512}, "qwen3_moe has latent attention (kv_lora_rank), a layer kind that is not priced"),
        ({"layer_types": ["mamba"] * 4}, "layer_types: 'mamba' is a layer kind that is not priced"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types is no list of num_hidden_layers=4 kinds"),
        (
            {"layer_types": ["linear_attention"] * 4},
            "its linear attention is no gated delta net (lacks linear_num_value_heads): not priced",
        ),
        ({"model_type": "qwen3_next", **GDN}, "lacks layer_types or full_attention_interval, which layers are GDN"),
        ({"hidden_size": "64"}, "hidden_size: '64' is no whole number from 0 to 10000000"),
        ({"hidden_size": 10**9}, "hidden_size: '1000000000' is no whole number from 0 to 10000000"),
        ({"num_experts_per_tok": 9}, "top_k=9 is above num_experts=8"),
        ({"num_attention_heads": 0}, "lacks head_dim, and 64 / 0 is no whole number"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers is no list"),
        ({"mlp_only_layers": [0, 1, 2, 3]}, "moe_layers=[] must rise and hold at least one layer"),
    ],
)
def test_a_config_that_cannot_be_priced_is_refused_in_one_line(changes, message):
    assert refusal(**changes) == message


def test_a_shape_is_found_by_name_file_or_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    assert find_shape(str(tmp_path)).hidden_size == find_shape(str(tmp_path / "config.json")).hidden_size == 64
    assert find_shape("Qwen/Qwen3-30B-A3B").num_experts == 128
    with pytest.raises(InputError, match="'gpt-9' is no bundled shape"):
        find_shape("gpt-9")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        find_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="no JSON object"):
        find_shape(str(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_as_the_measuring_side_reads_it(family):
    transformers = pytest.importorskip("transformers")
    from routing.measure.geometry import read_geometry

    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    config = transformers.CONFIG_MAPPING[family]()
    text = config.get_text_config(decoder=True)
    small = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    experts = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"} & text.to_dict().keys()
    ffn = {"moe_intermediate_size", "intermediate_size"} & text.to_dict().keys()
    for name, value in {**small, **dict.fromkeys(experts, 16), **dict.fromkeys(ffn, 32), "pad_token_id": None}.items():
        setattr(text, name, value)
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None) is not None:
            setattr(text, name, getattr(text, name)[:4])
    if family in ("granitemoeshared", "granitemoe_swa"):
        text.shared_intermediate_size = 48
    if family == "dots1":
        text.num_experts_per_tok, text.n_group, text.topk_group, text.n_shared_experts = 2, 1, 1, 1
    if family in ("glm4_moe", "sarvam_moe", "solar_open", "exaone_moe"):
        text.n_group, text.topk_group = 1, 1
    if family == "ernie4_5_moe":
        text.moe_layer_end_index = 3
    measured = read_geometry(config, where="config.json").shape
    read = decoder_shape(json.loads(json.dumps(config.to_dict(), default=str)), name="tiny", where="config.json")
    assert read.routed == measured
    assert _widths_of(transformers, config) == {
        "q_proj": read.query_width * (2 if read.output_gate else 1),
        "k_proj": read.kv_width,
        "shared": read.shared_ffn_size,
    }


def _widths_of(transformers, config):
    """What the parameters of the model itself say: rows of the query and key projections, width of the shared experts."""
    import torch

    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    sizes = {
        name: parameter.shape for name, parameter in model.named_parameters() if "vision" not in name and "visual" not in name
    }
    found = {one: next(shape[0] for name, shape in sizes.items() if f"{one}.weight" in name) for one in ("q_proj", "k_proj")}
    shared = {shape[1] for name, shape in sizes.items() if "shared" in name and ("down_proj" in name or "output_linear" in name)}
    assert len(shared) <= 1
    return {**found, "shared": shared.pop() if shared else 0}
