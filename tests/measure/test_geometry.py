"""What is read from a configuration, with the parameters of a token counted by hand."""

from routing.measure.geometry import read_geometry
from tests.policies import tiny_config


def test_active_parameters_leave_out_embeddings_and_idle_experts():
    one = read_geometry(tiny_config(num_hidden_layers=1, layer_types=["full_attention"], num_experts_per_tok=2), where="here")
    two = read_geometry(tiny_config(num_hidden_layers=1, layer_types=["full_attention"], num_experts_per_tok=3), where="here")
    # One more expert a token: gate and up projections of 2 x 8 x 32, down projection of 32 x 8.
    assert two.active_parameters - one.active_parameters == 2 * 8 * 32 + 32 * 8
    more = read_geometry(
        tiny_config(num_hidden_layers=1, layer_types=["full_attention"], num_experts_per_tok=2, vocab_size=512), where="here"
    )
    assert more.active_parameters == one.active_parameters


def test_the_shape_is_the_configurations():
    geometry = read_geometry(tiny_config(), where="here")
    assert (geometry.shape.moe_layers, geometry.shape.num_experts, geometry.shape.top_k) == ((0, 1, 2, 3), 8, 2)
    assert geometry.max_positions == 131_072
