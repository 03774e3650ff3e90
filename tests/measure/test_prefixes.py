"""Prefixes computed once give the loads of whole trajectories; a cache that can't be trusted is found out before the run."""

import numpy as np
import pytest
import torch

from routing.core.errors import InputError
from routing.corpus.tree import build_tree
from routing.measure import anchors as anchors_module
from routing.measure import attention, forward
from routing.measure.anchors import continued, find_anchors, tokens_once
from routing.measure.budget import Budget
from routing.measure.capture import ExpertCounter
from routing.measure.forward import measure_part
from routing.measure.plan import plan_parts
from routing.measure.prefixes import HeldCaches, num_bytes
from routing.measure.probe import is_trusted, probe_cache
from routing.store.settings import CacheProbe
from tests.measure.test_families import build, going_on

NESTED = ("qwen3_moe", "qwen3_5_moe_text", "gpt_oss", "deepseek_v3")  # attention, GDN, sliding windows, latent attention
WINDOW = 16


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Short prefixes are worth a pass, and passes go on in several chunks, attention in several blocks."""
    monkeypatch.setattr(anchors_module, "MIN_SAVED_TOKENS", 20)
    monkeypatch.setattr(forward, "CHUNK_TOKENS", 48)
    monkeypatch.setattr(attention, "BLOCK_TOKENS", 32)


@pytest.fixture(scope="module")
def sequences():
    """A stem of 70 tokens, a branch from it that parts again at 120, one that parts a token later, one ends inside, one alone."""
    draw = np.random.default_rng(11)
    stem, branch = draw.integers(3, 96, 70), draw.integers(3, 96, 50)

    def own(num_tokens):
        return draw.integers(3, 96, num_tokens)

    deep = np.concatenate([stem, branch, own(65)])
    made = [
        np.concatenate([stem, own(30)]),
        deep,
        np.concatenate([stem, branch, own(20)]),
        np.concatenate([stem, branch[:1], own(110)]),
        deep[:100],
        own(90),
        np.concatenate([stem, branch, own(7)]),
    ]
    return [one.astype(np.int32) for one in made]


@pytest.fixture(scope="module", params=NESTED)
def family_policy(request):
    changes = {"sliding_window": WINDOW} if request.param == "gpt_oss" else {}
    return going_on(build(request.param, **changes))


def _loads(policy, sequences, *, once, tokens_per_part=10**9, tokens_per_batch=4096, budget_bytes=10**9, order=None):
    """(loads of all parts, computed tokens)."""
    tree = build_tree(sequences, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=tokens_per_part)
    held = HeldCaches(anchors=find_anchors(tree, parts), budget_bytes=budget_bytes) if once else None
    heard, loads = [], {}
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        for place in order or range(len(parts)):
            budget = Budget(tokens_per_batch=tokens_per_batch)
            loads[place] = measure_part(policy, counter, parts[place], tree, sequences, budget, held=held, on_tokens=heard.append)
    return torch.cat([loads[place] for place in range(len(parts))]), sum(heard)


def test_prefixes_computed_once_give_the_loads_of_whole_trajectories(family_policy, sequences):
    whole, whole_tokens = _loads(family_policy, sequences, once=False)
    once, once_tokens = _loads(family_policy, sequences, once=True)
    assert torch.equal(once, whole)
    # 100 + 185 + 140 + 181 + 90 + 127, the one that ends inside another left out; once, the stem is computed a single time
    # and what it branches into too, but for the one token that the fourth repeats: 70 + 50 + 30 + 65 + 20 + 7 + 111 + 90.
    assert (whole_tokens, once_tokens) == (823, 443)


@pytest.mark.parametrize("tokens_per_part", [1, 200])
def test_parts_and_their_order_change_no_load(family_policy, sequences, tokens_per_part):
    whole, _ = _loads(family_policy, sequences, once=False)
    once, _ = _loads(family_policy, sequences, once=True, tokens_per_part=tokens_per_part, tokens_per_batch=1)
    assert torch.equal(once, whole)
    num_parts = len(plan_parts(build_tree(sequences, segment_tokens=32), tokens_per_part=tokens_per_part))
    backwards, _ = _loads(
        family_policy, sequences, once=True, tokens_per_part=tokens_per_part, order=list(range(num_parts))[::-1]
    )
    assert torch.equal(backwards, whole)


def test_a_cache_dropped_for_its_bytes_is_computed_again_to_the_same_loads(family_policy, sequences):
    kept, kept_tokens = _loads(family_policy, sequences, once=True)
    # The branch of 50 tokens drops the stem's cache; in parts of one pass the passes after it then compute the stem again.
    dropped, dropped_tokens = _loads(family_policy, sequences, once=True, tokens_per_part=1, budget_bytes=1)
    assert torch.equal(dropped, kept)
    assert dropped_tokens == kept_tokens + 70


def test_what_is_held_is_bounded_by_bytes_and_by_the_path(sequences):
    policy = going_on(build("qwen3_moe"))
    # 120 sequences of 40 families: a stem at a time is held, whatever their number.
    draw = np.random.default_rng(5)
    stems = [draw.integers(3, 96, 40) for _ in range(40)]
    many = [np.concatenate([stems[place % 40], draw.integers(3, 96, 6)]).astype(np.int32) for place in range(120)]
    tree = build_tree(many, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=300)
    held = HeldCaches(anchors=find_anchors(tree, parts), budget_bytes=10**9)
    most = 0
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        for part in parts:
            measure_part(policy, counter, part, tree, many, Budget(tokens_per_batch=4096), held=held)
            most = max(most, sum(map(num_bytes, held._held.values())))
    # 4 layers of keys and values, 2 heads of 8 floats, 40 tokens
    assert most == 4 * 2 * 2 * 8 * 4 * 40


def test_a_prefix_too_short_to_pay_is_repeated_as_context():
    shared = [np.array([1] * 15 + [place, 9], dtype=np.int32) for place in (2, 3)]
    tree = build_tree(shared, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=10**9)
    assert find_anchors(tree, parts) == {}
    assert tokens_once(tree, parts, {}) == [34]


def test_every_segment_is_counted_by_one_pass_from_its_anchor(sequences):
    tree = build_tree(sequences, segment_tokens=32)
    parts = plan_parts(tree, tokens_per_part=200)
    anchors = find_anchors(tree, parts)
    brought = [s for one in anchors.values() for s in range(one.run.first_segment, one.run.last_segment + 1)]
    for part in parts:
        for anchor, passes in continued(part, tree, anchors):
            for one in passes:
                assert one.start == (0 if anchor is None else tree.segments[anchor].end_position)
                brought += range(one.first_segment, one.last_segment + 1)
    assert sorted(brought) == list(range(len(tree.segments)))


def test_the_probe_trusts_these_caches(family_policy, sequences):
    with ExpertCounter(family_policy.experts, top_k=family_policy.top_k) as counter:
        probe = probe_cache(family_policy, counter, sequences)
    # 185 tokens, 2 experts, in each layer with experts
    assert (probe.num_ids, probe.cache_differs, probe.fault) == (185 * 2 * len(family_policy.experts), 0, None)
    assert is_trusted(probe, torch.float32)


def _forgets(cache):
    for layer in cache.layers:
        layer.keys, layer.values = torch.zeros_like(layer.keys), torch.zeros_like(layer.values)


def _shifts(cache):
    for layer in cache.layers:
        layer.keys = layer.keys.roll(1, dims=-2)


def _raises(_cache):
    raise NotImplementedError("no such cache")


@pytest.mark.parametrize("lie", [_forgets, _shifts, _raises])
def test_a_cache_that_lies_is_found_out(sequences, monkeypatch, lie):
    policy = going_on(build("qwen3_moe"))
    honest = forward.for_rows

    def dishonest(cache, num_rows, device):
        own = honest(cache, num_rows, device)
        lie(own)
        return own

    monkeypatch.setattr(forward, "for_rows", dishonest)
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        probe = probe_cache(policy, counter, sequences)
    assert not is_trusted(probe, torch.float32)
    assert not is_trusted(probe, torch.bfloat16)
    assert (probe.fault is not None) == (lie is _raises)


@pytest.mark.fault(
    "the device runs out of memory while the model's cache is tried",
    how="a forward pass raises it, without a cache and with one, as CUDA, Python and the CPU's allocator say it",
    tries=6,
    outcome="refused in one line with exit code 2; nothing is settled about the cache",
)
@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("simulated"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["cuda", "python", "cpu"],
)
def test_too_little_memory_is_not_held_against_the_cache(sequences, monkeypatch, with_cache, error):
    policy = going_on(build("qwen3_moe"))
    honest = type(policy.model).forward

    def cramped(self, *args, **kwargs):
        if kwargs["use_cache"] == with_cache:
            raise error
        return honest(self, *args, **kwargs)

    monkeypatch.setattr(type(policy.model), "forward", cramped)
    with (
        ExpertCounter(policy.experts, top_k=policy.top_k) as counter,
        pytest.raises(InputError, match="out of memory on 185 tokens and their cache, before the run; use a larger device"),
    ):
        probe_cache(policy, counter, sequences)


@pytest.mark.parametrize(("dtype", "moved", "by_padding", "trusted"), [
    (torch.float32, 1, 50, False),
    (torch.bfloat16, 10, 0, True),
    (torch.bfloat16, 11, 0, False),
    (torch.bfloat16, 40, 20, True),
    (torch.bfloat16, 41, 20, False),
])
def test_half_precision_may_move_one_id_in_100_or_twice_what_padding_moves(dtype, moved, by_padding, trusted):
    probe = CacheProbe(num_ids=1000, cache_differs=moved, padding_differs=by_padding, fault=None)
    assert is_trusted(probe, dtype) == trusted


@pytest.mark.parametrize("num_cached", [0, 3, 4, 5, 9])
def test_attention_without_a_mask_is_that_with_one(num_cached, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_TOKENS", 3)  # 4 cached tokens are put before 8 new ones, more are not
    torch.manual_seed(0)
    query, (key, value) = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 2, 8 + num_cached, 16)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    order = torch.arange(8 + num_cached) <= torch.arange(num_cached, 8 + num_cached)[:, None]
    whole_keys, whole_values = (one.repeat_interleave(2, dim=1) for one in (key, value))
    scores = (query @ whole_keys.mT / 4).masked_fill(~order, -torch.inf)
    answer, _ = attention._attend(module, query, key, value, None, scaling=0.25)
    assert torch.allclose(answer, (scores.softmax(-1) @ whole_values).transpose(1, 2), atol=1e-6)
