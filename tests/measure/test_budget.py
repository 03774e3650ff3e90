"""The tokens of a batch follow from the memory that is free and from what a pass was seen to take."""

import numpy as np
import pytest
import torch

from pipelines.trace.allocator import cpu_peak
from routing.core.errors import InputError
from routing.measure import budget
from routing.measure.anchors import Anchor
from routing.measure.budget import find_batch_memory, tokens_that_fit
from routing.measure.plan import Pass
from routing.measure.prefixes import HeldCaches
from routing.store.settings import BatchMemory
from tests.measure.test_families import build, going_on

SEQUENCES = [np.arange(3, 90, dtype=np.int32), np.arange(5, 50, dtype=np.int32)]


@pytest.fixture(scope="module")
def policy():
    return going_on(build("qwen3_moe"))


@pytest.fixture
def a_gpu_with(monkeypatch):
    """This CPU as a GPU with so many free bytes, on which a pass takes what `peak` says of it."""

    def patch(*, free_bytes, peak):
        monkeypatch.setattr(budget, "cuda_free_bytes", lambda _device: free_bytes)
        monkeypatch.setattr(budget, "cuda_peak", peak)

    return patch


def test_passes_take_half_of_what_is_free_and_no_more_than_a_part():
    # 10 GB free, 0.2 MB a token: half are 25,000 tokens, 24 x 1,024 of them.
    assert tokens_that_fit(BatchMemory(free_bytes=10_000_000_000, bytes_per_token=200_000)) == 24_576
    assert tokens_that_fit(BatchMemory(free_bytes=100_000, bytes_per_token=200_000)) == 1_024
    assert tokens_that_fit(BatchMemory(free_bytes=10**12, bytes_per_token=1)) == 131_072


def test_what_a_token_takes_is_seen_in_a_pass_of_8_rows_of_1024(policy, a_gpu_with):
    shapes = []
    policy.model.register_forward_pre_hook(lambda _m, _a, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    a_gpu_with(free_bytes=7, peak=lambda call: (call(), 8_193)[1])
    found = find_batch_memory(policy, SEQUENCES)
    assert shapes == [(8, 1_024), (8, 1_024)]  # one for the kernels, one that is looked at
    assert found == BatchMemory(free_bytes=7, bytes_per_token=2)  # rounded up


def test_what_is_seen_is_at_least_what_the_pass_must_hold(policy, a_gpu_with):
    a_gpu_with(free_bytes=1, peak=cpu_peak)
    found = find_batch_memory(policy, SEQUENCES)
    config = policy.model.config
    # The rows of the experts' input alone, float32: every token is copied to each of its top-k experts.
    assert found.bytes_per_token >= 4 * config.hidden_size * config.num_experts_per_tok


def test_where_memory_is_short_fewer_rows_are_tried(policy, monkeypatch, a_gpu_with):
    forward = type(policy.model).forward

    def cramped(self, input_ids, **kwargs):
        if len(input_ids) > 2:
            raise torch.OutOfMemoryError("simulated")
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(policy.model), "forward", cramped)
    a_gpu_with(free_bytes=7, peak=lambda call: (call(), 20_480)[1])
    found = find_batch_memory(policy, SEQUENCES)
    assert found.bytes_per_token == 10  # of 2 rows
    monkeypatch.setattr(type(policy.model), "forward", lambda *_args, **_kwargs: cramped(None, torch.zeros(3, 1)))
    with pytest.raises(InputError, match="out of memory on one trajectory of 1024 tokens alone"):
        find_batch_memory(policy, SEQUENCES)


def test_a_cache_is_repeated_to_no_more_bytes_than_may_be_held(policy):
    with torch.inference_mode():
        cache = policy.model(input_ids=torch.ones((1, 10), dtype=torch.long), use_cache=True).cache
    row_bytes = 4 * 2 * 2 * 8 * 4 * 10  # 4 layers of keys and values, 2 heads of 8 floats, 10 tokens
    anchors = {0: Anchor(parent=None, run=Pass(trajectory=0, num_tokens=10, first_segment=0, last_segment=0))}
    rows = [HeldCaches(anchors=anchors, budget_bytes=number).most_rows(cache) for number in (row_bytes * 3 + 1, row_bytes - 1)]
    assert rows == [3, 1]
