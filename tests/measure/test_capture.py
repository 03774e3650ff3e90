"""What the counter takes, and what it refuses, on experts modules of our own."""

import pytest
import torch
from torch import nn

from routing.core.errors import CheckFailedError, InputError
from routing.measure.capture import ExpertCounter, find_experts
from routing.measure.router_faults import RouterError


class Experts(nn.Module):
    def __init__(self, num_experts=4):
        super().__init__()
        self.num_experts = num_experts

    def forward(self, hidden_states, top_k_index, top_k_weights):
        return hidden_states


class Block(nn.Module):
    def __init__(self, num_experts=4):
        super().__init__()
        self.experts = Experts(num_experts)


class Model(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)


IDS = torch.tensor([[0, 1], [0, 2], [3, 0]])
WEIGHTS = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]])
SLOTS = torch.tensor([0, 1, 2])  # two segments, 41 and 42; the third token is padding


def _count(ids=IDS, weights=WEIGHTS, slots=SLOTS, *, calls=1, model=None):
    model = model or Model([nn.Identity(), Block()])
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        counter.begin(slots, segment_ids=[41, 42])
        for _ in range(calls):
            model.layers[1].experts(torch.zeros(len(ids), 8), ids, top_k_weights=weights)
        return counter.collect()


def test_rows_are_counted_per_segment_layer_and_expert():
    assert _count().tolist() == [[[1, 1, 0, 0]], [[1, 0, 1, 0]]]


def test_layers_are_decoder_layers_with_dense_ones_counted():
    assert [experts.layer for experts in find_experts(Model([nn.Identity(), Block(), nn.Identity(), Block()]))] == [1, 3]


@pytest.mark.fault(
    "ids of padding that are out of range",
    how="a padded token has the ids -5 and 99",
    tries=1,
    outcome="not counted and no error",
)
def test_padding_may_hold_any_id():
    ids = torch.tensor([[0, 1], [0, 2], [-5, 99]])
    assert _count(ids).tolist() == [[[1, 1, 0, 0]], [[1, 0, 1, 0]]]


def test_no_token_is_counted_outside_begin_and_collect():
    model = Model([nn.Identity(), Block()])
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        model.layers[1].experts(torch.zeros(3, 8), IDS, WEIGHTS)
        counter.begin(SLOTS, segment_ids=[41, 42])
        model.layers[1].experts(torch.zeros(3, 8), IDS, WEIGHTS)
        assert counter.collect().sum() == 4


OUT_OF_RANGE = pytest.mark.fault(
    "ids out of range", how="ids 4 and -1 of 4 experts", tries=2, outcome="exit 1: layer, segment, token, experts"
)
TWICE = pytest.mark.fault(
    "one expert twice in a token", how="ids 2 and 2 of one token", tries=1, outcome="exit 1: layer, segment, token"
)
NOT_FINITE = pytest.mark.fault(
    "NaN or Inf router weights of a token", how="one weight replaced", tries=3, outcome="exit 1: layer, segment, token, dtype"
)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        pytest.param([[0, 4], [0, 2], [0, 1]], WEIGHTS, "segment 41: 1 tokens .* ids out of range", marks=OUT_OF_RANGE),
        pytest.param([[0, 1], [-1, 2], [0, 1]], WEIGHTS, "segment 42: 1 tokens .* ids out of range", marks=OUT_OF_RANGE),
        pytest.param([[0, 1], [2, 2], [0, 1]], WEIGHTS, "segment 42: 1 tokens .* one expert twice", marks=TWICE),
        pytest.param(IDS, [[0.6, 0.4], [NAN, 0.1], [0.9, 0.1]], "segment 42: 1 tokens .* NaN or Inf", marks=NOT_FINITE),
        pytest.param(IDS, [[INF, 0.4], [0.7, 0.3], [0.9, 0.1]], "segment 41: 1 tokens .* NaN or Inf", marks=NOT_FINITE),
        pytest.param(IDS, [[0.6, 0.4], [0.7, -INF], [NAN, 0.1]], "segment 42: 1 tokens .* NaN or Inf", marks=NOT_FINITE),
    ],
)
def test_a_broken_token_is_named_by_layer_and_segment(ids, weights, message):
    with pytest.raises(CheckFailedError, match=f"layer 1, {message}.*, the first its token 0 .float32, 0..3 are its experts"):
        _count(torch.as_tensor(ids), torch.as_tensor(weights))


def test_a_token_is_named_by_its_place_in_its_segment_and_every_segment_without_router_is_told():
    ids, slots = torch.tensor([[0, 1]] * 6), torch.tensor([2, 0, 0, 1, 1, 2])
    weights = torch.tensor([[0.6, 0.4], [0.6, 0.4], [NAN, 0.1], [0.6, 0.4], [INF, 0.1], [NAN, NAN]])
    with pytest.raises(RouterError, match=r"segment 41: 2 tokens of the batch .* the first its token 1 ") as refusal:
        _count(ids, weights, slots)
    assert refusal.value.segment_ids == (41, 42)


@pytest.mark.fault(
    "all router logits equal", how="16 tokens with weights 0.5 and 0.5", tries=1, outcome="exit 1: layer, segment, token, dtype"
)
def test_a_router_that_gives_every_expert_of_every_token_one_weight_is_refused():
    ids, weights = IDS[:1].expand(17, 2), torch.full((17, 2), 0.5)
    slots = torch.tensor([0] * 16 + [2])  # 16 tokens of segment 41, one of padding
    weights = torch.cat([weights[:16], torch.tensor([[0.9, 0.1]])])
    with pytest.raises(RouterError, match=r"layer 1, segment 41: 16 tokens .* same weight .* token 0 .float32"):
        _count(ids, weights, slots)
    assert _count(ids, torch.cat([torch.tensor([[0.6, 0.4]]), weights[1:]]), slots).sum() == 32


def test_weights_of_one_for_experts_that_differ_are_no_fault():
    """The sparse mixer of Phi-3.5-MoE: among the logits near the largest it is mostly alone, so both of its choices weigh one."""
    ids = torch.tensor([[0, 1], [2, 3]] * 8)
    assert _count(ids, torch.ones(16, 2), torch.tensor([0] * 16)).sum() == 32


def test_a_few_tokens_that_tie_by_chance_are_no_fault():
    assert _count(weights=torch.full((3, 2), 0.5)).sum() == 4


def test_one_token_whose_weights_tie_is_no_fault():
    weights = torch.tensor([[0.5, 0.5], [0.7, 0.3], [0.9, 0.1]])
    assert _count(weights=weights).sum() == 4


@pytest.mark.fault(
    "another top-k than the configuration says",
    how="the experts are handed one id a token instead of two",
    tries=1,
    outcome="exit 1 at the first batch, both shapes named",
)
def test_another_top_k_than_the_configuration_says_is_refused_with_both():
    with pytest.raises(CheckFailedError, match=r"\(3, 1\), expected \(3, 2\)"):
        _count(IDS[:, :1], WEIGHTS[:, :1])


@pytest.mark.fault(
    "rows dropped between the model and its experts",
    how="the experts are handed two of three tokens",
    tries=1,
    outcome="exit 1 at the first batch, both shapes named",
)
def test_padding_rows_that_the_model_drops_are_refused():
    with pytest.raises(CheckFailedError, match=r"\(2, 2\), expected \(3, 2\)"):
        _count(IDS[:2], WEIGHTS[:2])


@pytest.mark.fault(
    "the experts of a layer run twice in one pass (recompute)",
    how="a second call of the layer's experts",
    tries=1,
    outcome="exit 1, the layer named",
)
def test_a_layer_that_runs_twice_is_refused():
    with pytest.raises(CheckFailedError, match="layer 1: its experts ran twice"):
        _count(calls=2)


@pytest.mark.fault(
    "a layer whose experts never run",
    how="a model with a second experts layer that is not called",
    tries=1,
    outcome="exit 1, the layer named",
)
def test_a_layer_that_is_never_reached_is_refused():
    with pytest.raises(CheckFailedError, match=r"layers \[3\]"):
        _count(model=Model([nn.Identity(), Block(), nn.Identity(), Block()]))


def test_a_dense_model_is_refused():
    with pytest.raises(InputError, match="not a Mixture-of-Experts"):
        find_experts(Model([nn.Linear(2, 2)]))


@pytest.mark.fault(
    "another number of experts from layer to layer",
    how="a model of 4 and of 8 experts",
    tries=1,
    outcome="exit 2 before a forward pass",
)
def test_layers_with_different_numbers_of_experts_are_refused():
    with pytest.raises(InputError, match="differ in their number of experts"):
        find_experts(Model([Block(4), Block(8)]))
