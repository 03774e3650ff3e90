"""Architectures that are refused: by name, before a model is built, and for a reason that their code shows."""

import re

import pytest
import torch

from routing.core.errors import InputError
from routing.measure.geometry import read_geometry
from routing.measure.refusals import REASONS
from tests.measure.families import tiny_config


def _decoder(model_type, **changes):
    from transformers import CONFIG_MAPPING, AutoModel

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    torch.manual_seed(0)
    decoder = AutoModel.from_config(tiny_config(model_type, **changes), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return decoder


def _calls_of_experts(decoder, ids_BT):
    """(module name, ids [T, K], weights [T, K]) of each call of an experts module in one forward pass."""
    calls = []

    def keep(name):
        return lambda _module, args: calls.append((name, args[1], args[2]))

    for name, module in decoder.named_modules():
        if name.endswith("experts"):
            module.register_forward_pre_hook(keep(name))
    with torch.inference_mode():
        decoder(input_ids=ids_BT, use_cache=False)
    return calls


@pytest.mark.parametrize("model_type", sorted(REASONS))
def test_what_is_not_proven_is_refused_by_name_and_reason(model_type):
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    sentence = f"here: routing of {model_type} models is not counted, {REASONS[model_type]}"
    with pytest.raises(InputError, match=re.escape(sentence)):
        read_geometry(CONFIG_MAPPING[model_type](), where="here")


def test_a_multimodal_model_is_refused_for_its_text_part():
    from transformers import Llama4Config

    with pytest.raises(InputError, match="routing of llama4_text models is not counted"):
        read_geometry(Llama4Config(), where="here")


def test_a_decoder_made_to_see_later_tokens_is_refused():
    config = tiny_config("gemma4_text", use_bidirectional_attention="all")
    with pytest.raises(InputError, match="gemma4_text model is not counted, its tokens see the later ones"):
        read_geometry(config, where="here")


def test_a_token_that_skips_its_experts_in_zaya_looks_like_one_of_expert_0():
    decoder = _decoder("zaya", num_experts_per_tok=1, router_hidden_size=16)
    for name, biases in decoder.named_buffers():
        if name.endswith("balancing_biases"):
            biases[-1] = 1.0  # skipping is chosen by every token
    for _, ids_TK, weights_TK in _calls_of_experts(decoder, torch.randint(3, 96, (1, 20))):
        assert ids_TK.eq(0).all()
        assert weights_TK.eq(0).all()


def test_longcat_chooses_ids_beyond_its_experts():
    decoder = _decoder("longcat_flash", num_key_value_heads=4, zero_expert_num=4)
    calls = _calls_of_experts(decoder, torch.randint(3, 96, (1, 20)))
    assert max(int(ids_TK.max()) for _, ids_TK, _ in calls) >= 8


def test_a_looped_model_runs_the_experts_of_a_layer_more_than_once():
    loop = {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3}
    calls = _calls_of_experts(_decoder("inkling2_loop_text", **loop), torch.randint(3, 96, (1, 20)))
    assert [name for name, _, _ in calls].count("layers.1.mlp.experts") == 3


def test_the_privacy_filter_routes_a_token_by_what_follows_it():
    decoder = _decoder("openai_privacy_filter")
    ids_BT = torch.randint(3, 96, (1, 20))
    alone, followed = (_calls_of_experts(decoder, one)[-4:] for one in (ids_BT[:, :12], ids_BT))
    assert any(not torch.equal(short[1], long[1][:12]) for short, long in zip(alone, followed, strict=True))
