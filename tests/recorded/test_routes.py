"""Recorded routes are what the model could have chosen, or are refused by the name of the fault."""

import base64
import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from routing.core.errors import CheckFailedError, InputError
from routing.core.shapes import ModelShape
from routing.recorded.faults import FAULTS, FaultError, require_layers_differ
from routing.recorded.routes import AskedRepairs, LayerDigests, held_to_model, recorded_layers
from routing.recorded.rows import read_recorded, sequences

# Four decoder layers of which 1 and 3 route, 8 experts, top-2.
MODEL = ModelShape(num_layers=4, moe_layers=(1, 3), num_experts=8, top_k=2, hidden_size=8, expert_ffn_size=8)
NO_REPAIRS = {"layers": None, "drop_last": False, "fill_prefixes": False, "drop_shared_expert": False}
# Three tokens: [tokens, layers, top-k]
ROUTES = np.array([[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[1, 2], [7, 0]]])


def held(routes=ROUTES, ids=(10, 11, 12), model=MODEL, row=None, **asked):
    """(what is kept, the repairs that were made)"""
    repairs = Counter()
    part = {"input_ids": list(ids), "routed_experts": routes, **(row or {})}
    raw = read_recorded(part, num_layers=model.num_layers, top_k=model.top_k)
    recorded = held_to_model(raw, model, AskedRepairs(**{**NO_REPAIRS, **asked}), repairs)
    return recorded, {name: count for name, count in repairs.items() if count}


def fault(*args, **options):
    with pytest.raises(FaultError) as caught:
        held(*args, **options)
    assert caught.value.reason in FAULTS
    return caught.value.reason, caught.value.detail


def changed(index, value):
    routes = ROUTES.copy()
    routes[index] = value
    return routes


def test_good_routes_are_kept_as_they_are():
    recorded, repairs = held()
    assert (recorded.token_ids.tolist(), recorded.first, repairs) == ([10, 11, 12], 0, {})
    assert np.array_equal(recorded.routes, ROUTES)


@pytest.mark.fault(
    "recorded routes that are zero, cut, of other layers, top-k or ids, or no routes at all",
    how="one row of an engine's file changed",
    tries=17,
    outcome="refused with reason, token and layer",
)
@pytest.mark.parametrize(
    ("routes", "reason", "said"),
    [
        (changed((1, 1), 8), "id_out_of_range", "token 1, layer 3: ids 8, 8, beyond 8 experts"),
        (changed((1, 0), 5), "expert_twice", "token 1, layer 1: ids 5, 5, one expert twice"),
        (changed(1, 0), "not_recorded", "1 of 3 tokens"),
        (changed((1, 0, 0), -1), "not_recorded", "the first at 1"),
        (np.zeros_like(ROUTES), "not_recorded", "3 of 3 tokens"),
        (ROUTES[:2], "last_token_missing", "--drop-last"),
        (changed(2, 0), "last_token_missing", "--drop-last"),
        (ROUTES[:1], "tokens_missing", "1 rows of routes for 3 tokens"),
        (np.concatenate([ROUTES, ROUTES]), "tokens_missing", "6 rows of routes for 3 tokens"),
        (changed(0, 0), "tokens_missing", "no routes for the first 1 of 3 tokens, from a prefix cache"),
        (ROUTES[:, :1], "layers", "1 layers, the model has 2 MoE layers of 4"),
        (ROUTES[:, :, :1], "top_k", "1 ids a token and layer, the model chooses 2"),
        (np.concatenate([ROUTES, np.full((3, 2, 1), 8)], axis=-1), "shared_expert_id", "--drop-shared-expert"),
        (ROUTES[:, 0], "layout", "routes of 2 dimensions"),
        (ROUTES / 2, "layout", "float64 values"),
        ([[[0, 1], [2]]], "layout", "lists of unequal length"),
        ("not base64!", "layout", "text and no base64"),
        (None, "layout", "no expert ids"),
    ],
)
def test_a_fault_is_named(routes, reason, said):
    found = fault(routes)
    assert found[0] == reason
    assert said in found[1]


@pytest.mark.fault(
    "a recorded row of another number of experts, or without token ids",
    how="one field of the row changed",
    tries=3,
    outcome="refused with its reason",
)
@pytest.mark.parametrize(
    ("row", "reason"),
    [({"num_experts": 16}, "num_experts"), ({"input_ids": None}, "token_ids"), ({"input_ids": [1, -2, 3]}, "token_ids")],
)
def test_a_row_that_contradicts_the_model_or_has_no_ids_is_refused(row, reason):
    assert fault(row=row)[0] == reason


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("as_array", [list, np.array])
@pytest.mark.parametrize("mask", [[0, 1, 1], [False, True, True], [0.0, 1.0, 1.0]])
def test_padding_loses_its_id_and_its_row_of_routes(mask, as_array):
    recorded, _ = held(changed(0, 0), row={"attention_mask": as_array(mask)})
    assert recorded.token_ids.tolist() == [11, 12]
    assert np.array_equal(recorded.routes, ROUTES[1:])


@pytest.mark.fault(
    "recorded routes with a mask that is none: NaN, other numbers, additive, of another length",
    how="the mask of one row changed",
    tries=6,
    outcome="refused with its reason",
)
@pytest.mark.parametrize("mask", [[NAN, 1, 1], [2, 1, 1], [-INF, 0, 0], [0, 1], [[0, 1, 1]], 1])
def test_a_mask_of_anything_but_a_zero_or_one_for_each_id_is_refused(mask):
    said = ("token_ids", "attention_mask is not 3 zeros and ones")
    assert fault(row={"attention_mask": mask}) == said
    assert fault(row={"attention_mask": np.array(mask)}) == said


def test_padding_is_dropped_only_where_every_id_has_its_row_of_routes():
    assert fault(ROUTES[:2], row={"attention_mask": [0, 1, 1]}, drop_last=True)[0] == "token_ids"
    recorded, _ = held(ROUTES[:2], row={"attention_mask": [1, 1, 1]}, drop_last=True)
    assert recorded.token_ids.tolist() == [10, 11]


def test_beside_a_completion_input_ids_are_the_prompt():
    recorded, _ = held(ids=[10], row={"completion_token_ids": [11, 12]})
    assert recorded.token_ids.tolist() == [10, 11, 12]
    reason, said = fault(ids=[10], row={"prompt_token_ids": [10], "completion_token_ids": [11, 12]})
    assert reason == "token_ids"
    assert said == "input_ids beside prompt_token_ids and completion_token_ids: leave out what is not meant"


@pytest.mark.parametrize(
    ("row", "reason", "said"),
    [
        ({"topk_ids": ROUTES[::-1].tolist()}, "layout", "routed_experts and topk_ids differ"),
        ({"tokens": [10, 11, 13]}, "token_ids", "input_ids and tokens differ"),
        ({"tokens": [10, 11]}, "token_ids", "input_ids and tokens differ"),
        (
            {"input_ids": None, "prompt_ids": [10], "response_ids": [11, 12], "output_ids": [11, 13]},
            "token_ids",
            "response_ids and output_ids differ",
        ),
        ({"output_ids": [13], "tokens": [10, 11, 12]}, "token_ids", "input_ids with output_ids and tokens differ"),
    ],
)
def test_two_keys_of_one_meaning_that_differ_are_refused(row, reason, said):
    found = fault(row=row)
    assert found[0] == reason
    assert said in found[1]


@pytest.mark.parametrize("row", [{"topk_ids": ROUTES.tolist(), "tokens": [10, 11, 12]}, {"topk_ids": 2, "tokens": 3}])
def test_two_keys_that_say_the_same_are_one_and_a_number_is_a_count(row):
    recorded, _ = held(row=row)
    assert recorded.token_ids.tolist() == [10, 11, 12]
    assert np.array_equal(recorded.routes, ROUTES)


def test_eight_bits_cannot_name_more_experts_than_they_count():
    large = ModelShape(num_layers=4, moe_layers=(1, 3), num_experts=257, top_k=2, hidden_size=8, expert_ffn_size=8)
    assert fault(ROUTES.astype(np.uint8), model=large) == ("num_experts", "ids of type uint8 can't name 257 experts")
    assert held(ROUTES.astype(np.uint16), model=large)[1] == {}


def test_dense_layers_are_no_layers_of_the_run():
    with_dense = np.zeros((3, 4, 2), dtype=np.int64)
    with_dense[:, [1, 3]] = ROUTES
    recorded, repairs = held(with_dense)
    assert np.array_equal(recorded.routes, ROUTES)
    assert repairs == {"dense_layers_dropped": 1}


def test_a_subset_of_layers_is_taken_where_it_is_named():
    asked = AskedRepairs(**{**NO_REPAIRS, "layers": (3,)})
    assert recorded_layers(MODEL, asked) == (3,)
    assert np.array_equal(held(ROUTES[:, 1:], layers=(3,))[0].routes, ROUTES[:, 1:])
    for layers in ((2,), (3, 1), (1, 1)):
        with pytest.raises(InputError, match="--layers"):
            recorded_layers(MODEL, AskedRepairs(**{**NO_REPAIRS, "layers": layers}))


@pytest.mark.parametrize("routes", [ROUTES[:2], changed(2, 0), changed(2, -1)])
def test_a_last_token_that_was_never_run_is_dropped_where_that_is_asked_for(routes):
    recorded, repairs = held(routes, drop_last=True)
    assert recorded.token_ids.tolist() == [10, 11]
    assert np.array_equal(recorded.routes, ROUTES[:2])
    assert repairs == {"last_token_dropped": 1}


@pytest.mark.parametrize(("routes", "row"), [(changed(0, 0), {}), (changed(0, -1), {}), (ROUTES[1:], {"cached_tokens": 1})])
def test_a_cached_prefix_is_left_to_another_sequence_where_that_is_asked_for(routes, row):
    recorded, repairs = held(routes, row=row, fill_prefixes=True)
    assert (recorded.first, recorded.token_ids.tolist()) == (1, [10, 11, 12])
    assert np.array_equal(recorded.routes, ROUTES[1:])
    assert repairs == {"prefix_tokens_absent": 1}


def test_a_cached_prefix_and_a_missing_last_token_come_together():
    recorded, repairs = held(ROUTES[1:2], row={"cached_tokens": 1}, fill_prefixes=True, drop_last=True)
    assert (recorded.first, recorded.token_ids.tolist(), len(recorded.routes)) == (1, [10, 11], 1)
    assert repairs == {"prefix_tokens_absent": 1, "last_token_dropped": 1}


def test_one_id_of_a_shared_expert_a_token_is_dropped_where_that_is_asked_for():
    with_shared = np.concatenate([np.full((3, 2, 1), 8), ROUTES], axis=-1)
    recorded, repairs = held(with_shared, drop_shared_expert=True)
    assert np.array_equal(recorded.routes, ROUTES)
    assert repairs == {"shared_expert_id_dropped": 1}
    # an id of a routed expert is none that may be dropped
    assert fault(np.concatenate([ROUTES, ROUTES[:, :, :1]], axis=-1), drop_shared_expert=True)[0] == "top_k"


@pytest.mark.fault(
    "an engine that repeats its routing (a stale buffer)",
    how="14 of 20 tokens given the routes of the sixth",
    tries=1,
    outcome="refused as repeated_rows",
)
def test_a_stale_buffer_repeats_itself():
    model = ModelShape(num_layers=3, moe_layers=(0, 1, 2), num_experts=64, top_k=2, hidden_size=8, expert_ffn_size=8)
    draw = np.random.default_rng(0)
    fresh = draw.permuted(np.tile(np.arange(64), (20, 3, 1)), axis=-1)[:, :, :2]
    stale = fresh.copy()
    stale[6:] = stale[5]
    assert held(fresh, ids=range(20), model=model)[1] == {}
    assert fault(stale, ids=range(20), model=model)[0] == "repeated_rows"


@pytest.mark.fault(
    "one layer recorded in two slots",
    how="two layers with the same ids for 20 tokens",
    tries=1,
    outcome="exit 1, both layers named",
)
def test_two_layers_that_choose_alike_for_every_token_are_one_layer_recorded_twice():
    digests = LayerDigests((1, 3))
    digests.add(np.array([[[0, 1], [1, 0]]] * 20))
    with pytest.raises(CheckFailedError, match="layers 1 and 3 hold the same experts for all 20 tokens"):
        require_layers_differ(digests.found(), num_tokens=20, num_experts=8, top_k=2)
    # 28 pairs of 8 experts are 4.8 bits a token: 13 tokens are 62.5 bits, not enough to be no chance
    require_layers_differ(digests.found(), num_tokens=13, num_experts=8, top_k=2)
    digests.add(ROUTES)
    require_layers_differ(digests.found(), num_tokens=23, num_experts=8, top_k=2)


def encoded_npy(routes):
    buffer = io.BytesIO()
    np.save(buffer, routes.astype(np.int16))
    return base64.b64encode(buffer.getvalue()).decode()


WITH_DENSE = np.stack([np.zeros((3, 2), int), ROUTES[:, 0], np.zeros((3, 2), int), ROUTES[:, 1]], axis=1)
SGLANG = base64.b64encode(WITH_DENSE.astype("<i4").tobytes()).decode()


@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": [10, 11, 12], "routed_experts": ROUTES.tolist()},
        {"tokens": [10, 11, 12], "rollout_routed_experts": ROUTES.tolist()},
        {"prompt_token_ids": [10, 11], "completion_token_ids": [12], "num_experts": 8, "routed_experts": ROUTES.tolist()},
        {  # a vLLM response: the prompt's routes beside the choices
            "prompt_token_ids": [10, 11],
            "prompt_routed_experts": ROUTES[:2].tolist(),
            "choices": [{"token_ids": [12], "routed_experts": ROUTES[2:].tolist()}],
        },
        {"prompt_token_ids": [10, 11], "choices": [{"token_ids": [12], "routed_experts": encoded_npy(ROUTES)}]},
        {"input_ids": [10, 11], "output_ids": [12], "meta_info": {"routed_experts": SGLANG, "cached_tokens": 0}},  # SGLang
        {  # ART: a group of trajectories, Choices among the messages
            "trajectories": [
                {
                    "messages_and_choices": [
                        {"role": "user", "content": "x"},
                        {
                            "message": {"role": "assistant", "content": "y"},
                            "prompt_token_ids": [10, 11],
                            "completion_token_ids": [12],
                            "num_experts": 8,
                            "routed_experts": ROUTES.tolist(),
                        },
                    ]
                }
            ]
        },
    ],
)
def test_the_keys_of_training_and_serving_stacks_are_known(row):
    (part,) = sequences(row)
    raw = read_recorded(part, num_layers=4, top_k=2)
    recorded = held_to_model(raw, MODEL, AskedRepairs(**NO_REPAIRS), Counter())
    assert recorded.token_ids.tolist() == [10, 11, 12]
    assert np.array_equal(recorded.routes, ROUTES)


@pytest.mark.parametrize(("num_experts", "itemsize"), [(8, 1), (256, 1), (257, 2), (2**16 + 1, 4)])
def test_ids_are_held_in_as_few_bytes_as_the_experts_need(num_experts, itemsize):
    highest = num_experts - 1
    recorded, _ = held(changed((0, 0, 0), highest), model=replace(MODEL, num_experts=num_experts))
    assert recorded.routes.dtype.itemsize == itemsize
    assert recorded.routes.max() == highest
