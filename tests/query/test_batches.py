"""A batch is a run of consecutive segments in (trajectory order, position), closed by the segment that reaches the size."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.errors import InputError
from routing.query.batches import Steps, cut_batches, order_steps, rank_trajectories


def _steps(paths, segment_tokens):
    rows = [(trajectory, segment) for trajectory, path in enumerate(paths) for segment in path]
    trajectories, segments = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return Steps(trajectory_ids=trajectories, segment_ids=segments, num_tokens=np.array(segment_tokens, dtype=np.int64)[segments])


def _cut(paths, segment_tokens, batch_tokens, view="packed"):
    found = cut_batches(_steps(paths, segment_tokens), batch_tokens=batch_tokens, view=view)
    rows = list(zip(found.batch.tolist(), found.segment_id.tolist(), found.copies.tolist(), strict=True))
    return rows, (found.num_batches, found.num_tokens, found.dropped_tokens, found.num_steps)


# A prompt of 10 tokens (segment 0) opens two trajectories, which go on alone with 4 and 5, and with 6.
SHARED = {"paths": [[0, 1, 2], [0, 3]], "segment_tokens": [10, 4, 5, 6]}


def test_a_packed_batch_counts_a_shared_segment_once():
    # 10 + 4 + 5 = 19, the prompt again adds nothing, + 6 = 25 reaches 25.
    assert _cut(**SHARED, batch_tokens=25) == ([(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)], (1, 25, 0, 5))


def test_a_logical_batch_counts_every_copy():
    # 10 + 4 + 5 + 10 = 29 reaches 25 at the second prompt; 6 tokens are left.
    assert _cut(**SHARED, batch_tokens=25, view="logical") == ([(0, 0, 2), (0, 1, 1), (0, 2, 1)], (1, 29, 6, 4))


def test_a_shared_segment_counts_again_in_the_next_batch():
    # 10 + 4 = 14 reaches 12; 5 + 10 = 15 reaches 12; 6 tokens are left.
    assert _cut(**SHARED, batch_tokens=12) == ([(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 2, 1)], (2, 29, 6, 4))


def test_the_segment_that_reaches_the_size_closes_the_batch():
    assert _cut([[0, 1]], [5, 5], 5) == ([(0, 0, 1), (1, 1, 1)], (2, 10, 0, 2))
    assert _cut([[0, 1]], [5, 5], 6) == ([(0, 0, 1), (0, 1, 1)], (1, 10, 0, 2))


def test_a_segment_above_the_size_is_a_batch_of_its_own():
    assert _cut([[0, 1]], [100, 3], 10) == ([(0, 0, 1)], (1, 100, 3, 1))


def test_data_below_the_size_make_no_batch_and_are_counted():
    assert _cut(**SHARED, batch_tokens=26) == ([], (0, 0, 25, 0))


def test_no_step_makes_no_batch():
    assert _cut([], [1], 1) == ([], (0, 0, 0, 0))


def test_a_seed_orders_by_the_hash_of_seed_and_trajectory():
    names = ["a", "b", "c", "d"]
    by_hand = sorted(range(4), key=lambda place: hashlib.sha256(b"7:" + names[place].encode()).hexdigest())
    ranks = rank_trajectories(names, 7)
    assert [ranks.tolist().index(place) for place in range(4)] == by_hand
    steps = order_steps(_steps([[0, 1], [2], [3, 4], [5]], [1] * 6), ranks)
    paths = {0: [0, 1], 1: [2], 2: [3, 4], 3: [5]}
    assert steps.segment_ids.tolist() == [segment for trajectory in by_hand for segment in paths[trajectory]]


def test_corpus_order_is_the_order_of_the_trajectories():
    assert rank_trajectories(["b", "a"], "corpus").tolist() == [0, 1]


@pytest.mark.parametrize("order", ["random", "7", True, 1.0, None])
def test_an_order_is_the_corpus_or_a_whole_number(order):
    with pytest.raises(InputError, match="--order"):
        rank_trajectories(["a"], order)


def test_another_view_or_no_size_is_refused():
    with pytest.raises(InputError, match=r"--view: 'both'"):
        _cut(**SHARED, batch_tokens=5, view="both")
    with pytest.raises(InputError, match=r"--batch-tokens: 0"):
        _cut(**SHARED, batch_tokens=0)


@given(
    paths=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=6),
    segment_tokens=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    batch_tokens=st.integers(1, 60),
    view=st.sampled_from(["packed", "logical"]),
)
def test_every_step_is_in_one_batch_or_dropped(paths, segment_tokens, batch_tokens, view):
    rows, (num_batches, num_tokens, dropped_tokens, num_steps) = _cut(paths, segment_tokens, batch_tokens, view)
    steps = [segment for path in paths for segment in path]
    assert sum(copies * segment_tokens[segment] for _, segment, copies in rows) == num_tokens
    assert dropped_tokens < batch_tokens
    for batch in range(num_batches):
        assert sum(copies * segment_tokens[segment] for found, segment, copies in rows if found == batch) >= batch_tokens
    if view == "logical":
        assert num_tokens + dropped_tokens == sum(segment_tokens[segment] for segment in steps)
        assert sum(copies for *_, copies in rows) == num_steps
