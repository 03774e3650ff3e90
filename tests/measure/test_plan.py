"""Parts hold whole segments once, in order, and each is one worker's."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.corpus.tree import build_tree
from routing.measure.plan import PartPlan, Pass, deal_parts, plan_parts

CORPORA = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple), min_size=1, max_size=8, unique=True)


@given(sequences=CORPORA, tokens_per_part=st.integers(1, 20))
@settings(max_examples=100)
def test_every_segment_is_in_one_part_once(sequences, tokens_per_part):
    tree = build_tree([np.array(one, dtype=np.int32) for one in sequences], segment_tokens=2)
    parts = plan_parts(tree, tokens_per_part=tokens_per_part)
    brought = [s for part in parts for one in part.passes for s in range(one.first_segment, one.last_segment + 1)]
    assert brought == list(range(len(tree.segments)))
    for part in parts:
        for one in part.passes:
            assert set(range(one.first_segment, one.last_segment + 1)) <= set(tree.paths[one.trajectory])
    assert all(part.num_tokens >= tokens_per_part for part in parts[:-1])


def _pass(trajectory, num_tokens):
    return Pass(trajectory=trajectory, num_tokens=num_tokens, first_segment=trajectory, last_segment=trajectory)


def test_a_trajectory_that_ends_inside_another_needs_no_pass():
    tree = build_tree([np.array(one, dtype=np.int32) for one in ((1, 2, 3), (1, 2))], segment_tokens=9)
    (part,) = plan_parts(tree, tokens_per_part=100)
    assert [(one.trajectory, one.num_tokens, one.first_segment) for one in part.passes] == [(0, 3, 0)]


def _part(index, num_tokens):
    return PartPlan(index=index, passes=(_pass(index, num_tokens),))


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), num_workers=st.integers(1, 9))
@settings(max_examples=100)
def test_every_part_is_dealt_once_in_order_and_no_worker_gets_more_than_its_share_and_a_part(sizes, num_workers):
    parts = [_part(index, size) for index, size in enumerate(sizes)]
    shares = [deal_parts(parts, worker=worker, num_workers=num_workers) for worker in range(num_workers)]
    assert [part.index for share in shares for part in share] == list(range(len(sizes)))
    assert all(sum(part.num_tokens for part in share) <= sum(sizes) / num_workers + max(sizes) for share in shares)


def test_parts_of_one_size_are_dealt_evenly():
    parts = [_part(index, 10) for index in range(8)]
    assert [[part.index for part in deal_parts(parts, worker=worker, num_workers=4)] for worker in range(4)] == [
        [0, 1], [2, 3], [4, 5], [6, 7],
    ]  # fmt: skip
