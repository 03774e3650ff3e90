"""Every token's fault bits against plain Python, which looks at one token after the other."""

import math
import random

import pytest
import torch

from routing.core.errors import CheckFailedError
from routing.measure import tally as tally_module
from routing.measure.capture import ExpertCounter, find_experts
from routing.measure.router_faults import DEAD, FAULTS, NOT_FINITE, OUT_OF_RANGE, REPEATED, RouterError
from routing.measure.tally import Tally
from tests.measure.test_capture import Block, Model

NUM_EXPERTS = 12


def bits(ids_TK, weights_TK, counted):
    """Fault bits [T] by the way of a tally."""
    slot_T = torch.tensor([0 if counts else 1 for counts in counted])
    kind = None if weights_TK is None else (weights_TK.dtype, weights_TK.shape[1])
    tally = Tally(slot_T=slot_T, num_slots=1, num_experts=NUM_EXPERTS, weights_kind=kind)
    tally.add(3, ids_TK, weights_TK)
    return tally.count()[3].fault_bits


def drawn(draw, num_tokens, top_k):
    """Ids, weights and which tokens count, with a fault here and there, and batches of one choice."""
    one = draw.sample(range(NUM_EXPERTS), top_k) if draw.random() < 0.4 else None
    ids = [list(one or draw.sample(range(NUM_EXPERTS), top_k)) for _ in range(num_tokens)]
    even = draw.random() < 0.6
    weights = [[0.25 if even else draw.random() for _ in range(top_k)] for _ in range(num_tokens)]
    counted = [draw.random() < 0.9 for _ in range(num_tokens)]
    for _ in range(draw.choice([0, 0, 1, 3])):
        token, place = draw.randrange(num_tokens), draw.randrange(top_k)
        ids[token][place] = draw.choice(
            [-1, -(2**31) - 3, NUM_EXPERTS, 2**32 + 1, 2**40, ids[token][0], draw.randrange(NUM_EXPERTS)]
        )
    for _ in range(draw.choice([0, 0, 1, 3])):
        weights[draw.randrange(num_tokens)][draw.randrange(top_k)] = draw.choice([math.nan, math.inf, -math.inf, 0.0])
    return ids, weights, counted


def by_hand(ids, weights, counted):
    top_k = len(ids[0])
    of_first = next((one for one, counts in zip(ids, counted, strict=True) if counts), ids[0])
    within = range(NUM_EXPERTS)
    alike = [
        len(set(weighed)) == 1 and one == of_first and all(expert in within for expert in one)
        for one, weighed, counts in zip(ids, weights, counted, strict=True)
        if counts
    ]
    dead = top_k > 1 and len(alike) >= 16 and all(alike)
    told = []
    for one, weighed, counts in zip(ids, weights, counted, strict=True):
        found = {NOT_FINITE: not all(map(math.isfinite, weighed)), DEAD: dead}
        found[OUT_OF_RANGE] = not all(0 <= expert < NUM_EXPERTS for expert in one)
        within = [min(max(expert, -1), NUM_EXPERTS) for expert in one]
        found[REPEATED] = len(set(within)) < top_k
        told.append(counts * sum(fault for fault, shown in found.items() if shown))
    return told


@pytest.mark.parametrize("top_k", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bits_are_those_of_plain_python(top_k, dtype):
    draw, seen = random.Random(top_k), set()
    for _ in range(400):
        ids, weights, counted = drawn(draw, draw.randint(1, 40), top_k)
        if dtype is torch.int32:
            ids = [[min(max(one, -(2**31)), 2**31 - 1) for one in token] for token in ids]
        found = bits(torch.tensor(ids, dtype=dtype), torch.tensor(weights), counted)
        assert found.tolist() == by_hand(ids, weights, counted)
        seen |= {fault for one in found.tolist() for fault in FAULTS if one & fault}
    assert seen == ({NOT_FINITE, OUT_OF_RANGE} if top_k == 1 else set(FAULTS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_finite_weights_are_no_fault(dtype):
    weights = torch.tensor([[6e4, -6e4], [6e4, 6e4]], dtype=dtype)
    ids = torch.tensor([[0, 1], [1, 2]])
    assert bits(ids, weights, [True, True]).tolist() == [0, 0]


def test_experts_that_are_handed_no_weights_are_judged_by_ids_alone():
    ids = torch.tensor([[0, 1], [4, 4], [0, 99]])
    assert bits(ids, None, [True] * 3).tolist() == [0, REPEATED, OUT_OF_RANGE]


def test_tokens_that_tie_on_ids_out_of_range_are_wrongly_read_and_not_a_router_that_does_not_choose():
    """Each of 20 tokens has experts of its own, all beyond the last."""
    ids = torch.arange(100, 140).view(20, 2)
    assert bits(ids, torch.full((20, 2), 0.5), [True] * 20).tolist() == [OUT_OF_RANGE | REPEATED] * 20
    model = Model([Block(NUM_EXPERTS)])
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        counter.begin(torch.zeros(20, dtype=torch.long), segment_ids=[7])
        model.layers[0].experts(torch.zeros(20, 8), ids, torch.full((20, 2), 0.5))
        with pytest.raises(CheckFailedError, match=r"20 tokens .* ids out of range") as refusal:
            counter.collect()
    assert not isinstance(refusal.value, RouterError)


@pytest.mark.parametrize(("dtype", "num_experts"), [(torch.uint8, 12), (torch.uint8, 256), (torch.int8, 128), (torch.int16, 512)])
def test_ids_of_few_bits_are_counted(dtype, num_experts):
    ids = torch.tensor([[0, 5], [num_experts - 1 if num_experts <= 256 else 300, 3]]).to(dtype)
    tally = Tally(slot_T=torch.tensor([0, 0]), num_slots=1, num_experts=num_experts, weights_kind=None)
    tally.add(0, ids, None)
    counted = tally.count()[0]
    assert counted.fault_bits.tolist() == [0, 0]
    assert counted.rows[0].nonzero().flatten().tolist() == sorted(ids.long().flatten().tolist())


@pytest.mark.parametrize(("num_tokens", "top_k"), [(60, 4), (60, 1), (1, 4), (1, 1)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_what_the_experts_do_to_ids_and_weights_is_not_seen(num_tokens, top_k, is_transposed):
    """Of these shapes and layouts a transposed tensor may be the same memory: a NaN that is cleaned afterwards is still told."""
    shape = (top_k, num_tokens) if is_transposed else (num_tokens, top_k)
    ids = torch.arange(top_k).expand(num_tokens, top_k).clone()
    weights = torch.full(shape, 0.25)
    weights.view(-1)[0] = math.nan
    if is_transposed:
        ids, weights = ids.t().contiguous().t(), weights.t()
    model = Model([Block(NUM_EXPERTS)])
    with ExpertCounter(find_experts(model), top_k=top_k) as counter:
        counter.begin(torch.zeros(num_tokens, dtype=torch.long), segment_ids=[7])
        model.layers[0].experts(torch.zeros(num_tokens, 8), ids, weights)
        ids.fill_(99)
        weights.fill_(0.25)
        with pytest.raises(RouterError, match=r"segment 7: 1 tokens .*NaN"):
            counter.collect()


def layers_of(draw, num_layers, num_tokens, top_k=4):
    ids = [torch.tensor([draw.sample(range(NUM_EXPERTS), top_k) for _ in range(num_tokens)]) for _ in range(num_layers)]
    return ids, [torch.rand(num_tokens, top_k, generator=torch.Generator().manual_seed(one)) for one in range(num_layers)]


@pytest.mark.parametrize("most_bytes", [1, 5_000, 2**30])
def test_layers_counted_together_are_those_counted_alone(most_bytes, monkeypatch):
    """With 60 tokens and 4 choices a layer's ids and weights take 1,920 bytes: one, three and seven layers at a time."""
    monkeypatch.setattr(tally_module, "_MOST_BYTES", most_bytes)
    draw, num_layers = random.Random(5), 7
    model = Model([Block(NUM_EXPERTS) for _ in range(num_layers)])
    ids, weights = layers_of(draw, num_layers, 60)
    weights[4] = weights[4].double()  # of another type than its neighbours
    slots = [draw.randrange(4) for _ in range(60)]  # 3 is padding
    sizes = []
    monkeypatch.setattr(Tally, "count", lambda self, count=Tally.count: sizes.append(len(self._layers)) or count(self))
    with ExpertCounter(find_experts(model), top_k=4) as counter:
        counter.begin(torch.tensor(slots), segment_ids=[0, 1, 2])
        for layer, block in enumerate(model.layers):
            block.experts(torch.zeros(60, 8), ids[layer], weights[layer])
            ids[layer].fill_(0)  # experts may sort or overwrite what they are handed
        found = counter.collect()
    again, _ = layers_of(random.Random(5), num_layers, 60)
    by_hand = torch.zeros(3, num_layers, NUM_EXPERTS, dtype=torch.int32)
    for layer in range(num_layers):
        for slot, chosen in zip(slots, again[layer].tolist(), strict=True):
            if slot < 3:
                by_hand[slot, layer, chosen] += 1
    assert torch.equal(found, by_hand)
    assert sizes == {1: [1] * 7, 5_000: [3, 1, 1, 2], 2**30: [4, 1, 2]}[most_bytes]


def test_layers_whose_weights_differ_in_width_are_each_judged():
    """Weights of every expert [T, E] beside weights of those chosen [T, K]."""
    model = Model([Block(NUM_EXPERTS) for _ in range(2)])
    ids, weights = layers_of(random.Random(7), 2, 20)
    weights[1] = torch.rand(20, NUM_EXPERTS)
    weights[1][3, 11] = math.nan
    with ExpertCounter(find_experts(model), top_k=4) as counter:
        counter.begin(torch.zeros(20, dtype=torch.long), segment_ids=[7])
        for layer, block in enumerate(model.layers):
            block.experts(torch.zeros(20, 8), ids[layer], weights[layer])
        with pytest.raises(RouterError, match=r"layer 1, segment 7: 1 tokens .*NaN or Inf.*its token 3 "):
            counter.collect()


@pytest.mark.parametrize(
    ("ids", "weights", "said"),
    [
        (torch.zeros(20, 2), torch.rand(20, 2), r"layer 0: .* ids of torch.float32"),
        (torch.ones(20, 2, dtype=torch.long), torch.rand(20), r"layer 0: .* shape \(20,\), expected 20 rows"),
        (torch.ones(20, 2, dtype=torch.long), torch.rand(2, 20), r"layer 0: .* shape \(2, 20\), expected 20 rows"),
    ],
)
def test_what_is_no_id_and_no_weight_of_a_token_is_refused(ids, weights, said):
    model = Model([Block(NUM_EXPERTS)])
    with ExpertCounter(find_experts(model), top_k=2) as counter:
        counter.begin(torch.zeros(20, dtype=torch.long), segment_ids=[7])
        with pytest.raises(CheckFailedError, match=said):
            model.layers[0].experts(torch.zeros(20, 8), ids, weights)


def test_a_fault_is_told_of_the_layer_that_has_it_though_others_wait_with_it():
    model = Model([Block(NUM_EXPERTS) for _ in range(4)])
    ids, weights = layers_of(random.Random(6), 4, 20)
    ids[3][:, 0], weights[2][7, 1], weights[3][9, 0] = NUM_EXPERTS, math.nan, math.inf
    with ExpertCounter(find_experts(model), top_k=4) as counter:
        counter.begin(torch.tensor([0] * 5 + [1] * 3 + [2] * 12), segment_ids=[7, 8, 9])
        for layer, block in enumerate(model.layers):
            block.experts(torch.zeros(20, 8), ids[layer], weights[layer])
        with pytest.raises(RouterError, match=r"layer 2, segment 8: 1 tokens .*NaN or Inf.*its token 2 .float32") as refusal:
            counter.collect()
    assert refusal.value.segment_ids == (8, 9)
