"""Loads of a part against an independent truth: which tokens change when one expert's weights are poisoned."""

import gc

import numpy as np
import pytest
import torch

from routing.core.errors import InputError
from routing.corpus.tree import build_tree
from routing.measure.budget import Budget
from routing.measure.capture import ExpertCounter
from routing.measure.forward import measure_part
from routing.measure.plan import plan_parts


@pytest.fixture(scope="module")
def sequences():
    """Four sequences: three share 40 tokens, two of them 70, the fourth is a strict prefix of the first."""
    random = np.random.default_rng(7)
    first = random.integers(0, 256, 150)
    second = np.concatenate([first[:70], random.integers(0, 256, 31)])
    third = np.concatenate([first[:40], random.integers(0, 256, 65)])
    return [one.astype(np.int32) for one in (first, second, third, first[:90])]


def _loads(policy, sequences, *, tokens_per_batch, tokens_per_part=10**9, segment_tokens=32):
    tree = build_tree(sequences, segment_tokens=segment_tokens)
    budget = Budget(tokens_per_batch=tokens_per_batch)
    with ExpertCounter(policy.experts, top_k=policy.top_k) as counter:
        parts = plan_parts(tree, tokens_per_part=tokens_per_part)
        loads = [measure_part(policy, counter, part, tree, sequences, budget) for part in parts]
    return tree, torch.cat(loads), budget


def _users_of(policy, sequence, layer, expert):
    """The positions whose MoE output turns NaN when `expert` of `layer` is poisoned; no id is read from the model."""
    experts = next(one.module for one in policy.experts if one.layer == layer)
    outputs = []
    handle = experts.register_forward_hook(lambda _module, _args, output: outputs.append(output.detach().clone()))
    saved = experts.down_proj.data[expert].clone()
    try:
        experts.down_proj.data[expert] = float("nan")
        with torch.inference_mode():
            policy.model(input_ids=torch.tensor(sequence[None].astype(np.int64)), use_cache=False)
    finally:
        experts.down_proj.data[expert] = saved
        handle.remove()
    return outputs[0].reshape(len(sequence), -1).isnan().any(-1)


def test_loads_are_the_tokens_that_a_poisoned_expert_changes(tiny_policy, sequences):
    tree, loads_SLE, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    owner = {segment: place for place, path in reversed(list(enumerate(tree.paths))) for segment in path}
    for place, layer in ((0, 0), (1, 1), (3, 3)):
        for expert in range(8):
            users = [_users_of(tiny_policy, sequence, layer, expert) for sequence in sequences]
            for segment in tree.segments:
                used = users[owner[segment.segment_id]][segment.first_position : segment.end_position]
                assert int(loads_SLE[segment.segment_id, place, expert]) == int(used.sum()), (layer, expert, segment)


def test_every_layer_gets_top_k_rows_a_packed_token(tiny_policy, sequences):
    tree, loads_SLE, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    # 150 + (101 - 70) + (105 - 40): the strict prefix brings nothing.
    assert tree.tokens_packed == 246
    assert loads_SLE.sum((0, 2)).tolist() == [246 * 2] * 4


def test_padding_and_batch_composition_change_no_load(tiny_policy, sequences):
    _, together, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    _, alone, _ = _loads(tiny_policy, sequences, tokens_per_batch=1)
    assert torch.equal(together, alone)


def test_parts_change_no_load(tiny_policy, sequences):
    _, one_part, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    _, many_parts, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096, tokens_per_part=1)
    assert torch.equal(one_part, many_parts)


@pytest.mark.fault(
    "the device out of memory on a batch",
    how="the forward pass raises OutOfMemoryError above 250 padded tokens",
    tries=1,
    outcome="the batch is halved and counted in the manifest, no row lost",
)
def test_out_of_memory_halves_the_batch_and_loses_no_row(tiny_policy, sequences, monkeypatch):
    _, expected, _ = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    forward = type(tiny_policy.model).forward

    def cramped(self, input_ids, **kwargs):
        if input_ids.numel() > 250:
            raise torch.OutOfMemoryError("simulated")
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(tiny_policy.model), "forward", cramped)
    _, loads, budget = _loads(tiny_policy, sequences, tokens_per_batch=4096)
    assert torch.equal(loads, expected)
    # Three passes padded to 450 tokens fail once; 225 then hold one pass of 150, and two of 105.
    assert (budget.halvings, budget.tokens_per_batch) == (1, 225)


@pytest.mark.fault(
    "the device out of memory on one trajectory alone",
    how="the forward pass raises the CPU allocator's error",
    tries=1,
    outcome="exit 2 with the tokens of the trajectory",
)
def test_a_single_trajectory_that_does_not_fit_is_said(tiny_policy, sequences, monkeypatch):
    def hopeless(self, **_kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(type(tiny_policy.model), "forward", hopeless)
    with pytest.raises(InputError, match="one trajectory of 150 tokens"):
        _loads(tiny_policy, sequences, tokens_per_batch=4096)


def test_another_error_of_the_model_is_not_taken_for_memory(tiny_policy, sequences, monkeypatch):
    def broken(self, **_kwargs):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(type(tiny_policy.model), "forward", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        _loads(tiny_policy, sequences, tokens_per_batch=4096)


def _live_bytes():
    gc.collect()
    return sum(one.numel() * one.element_size() for one in gc.get_objects() if issubclass(type(one), torch.Tensor))


@pytest.mark.fault(
    "router logits kept for every token (transformers 48131)",
    how="two and six trajectories of 64 tokens in batches of one",
    tries=1,
    outcome="tensors alive after a batch grow by the counts alone, 128 bytes a segment",
)
def test_nothing_is_kept_of_a_token_but_its_counts(tiny_policy):
    """transformers 48131: router logits kept took 81 GB at 128k tokens. Counts of 4 layers x 8 experts are 128 bytes a segment.

    4 trajectories of two segments more hold 4 x 2 x 128 bytes of counts; their logits would be 4 x 64 x 4 x 8 x 4.
    """
    random = np.random.default_rng(3)
    most = {}
    for count in (2, 6):
        sequences = [random.integers(0, 256, 64).astype(np.int32) for _ in range(count)]
        tree = build_tree(sequences, segment_tokens=32)
        (part,) = plan_parts(tree, tokens_per_part=10**9)
        before, seen = _live_bytes(), []
        with ExpertCounter(tiny_policy.experts, top_k=tiny_policy.top_k) as counter:
            budget = Budget(tokens_per_batch=64)
            on_tokens = lambda _tokens: seen.append(_live_bytes() - before)  # noqa: B023, E731
            measure_part(tiny_policy, counter, part, tree, sequences, budget, on_tokens=on_tokens)
        assert (len(seen), len(tree.segments)) == (count, 2 * count)
        most[count] = max(seen)
    assert most[6] - most[2] <= 4 * 2 * 128
