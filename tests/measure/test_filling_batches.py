"""Batches stay within their budget and pad no more than a pass is worth."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.measure.batches import deal_batches
from routing.measure.plan import Pass


def _pass(trajectory, num_new):
    return Pass(trajectory=trajectory, num_tokens=num_new + 7, first_segment=trajectory, last_segment=trajectory, start=7)


def _dealt(lengths, **limits):
    return [[one.num_new for one in batch] for batch in deal_batches([_pass(*one) for one in enumerate(lengths)], **limits)]


@pytest.mark.parametrize(("lengths", "limits", "dealt"), [
    # To pad 10 to 1,000 costs 990, a pass of its own 256; to pad 900 costs 100.
    ([1000, 10, 900], {"tokens_per_batch": 10_000}, [[1000, 900], [10]]),
    ([900, 1000], {"tokens_per_batch": 1_999}, [[1000], [900]]),
    ([50, 50, 50], {"tokens_per_batch": 49}, [[50], [50], [50]]),
    ([50] * 5, {"tokens_per_batch": 10_000, "most_rows": 3}, [[50] * 2, [50] * 3]),
    ([], {"tokens_per_batch": 1}, []),
])
def test_a_row_joins_where_padding_it_costs_less_than_a_pass(lengths, limits, dealt):
    assert _dealt(lengths, pass_tokens=256, **limits) == dealt


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    tokens_per_batch=st.integers(1, 40),
    most_rows=st.none() | st.integers(1, 4),
)
@settings(max_examples=60)
def test_no_cut_into_runs_of_length_costs_less(lengths, tokens_per_batch, most_rows):
    dealt = _dealt(lengths, tokens_per_batch=tokens_per_batch, pass_tokens=5, most_rows=most_rows)
    ordered = sorted(lengths, reverse=True)
    assert [length for batch in dealt for length in batch] == ordered

    def cost(runs):
        return sum(len(run) * run[0] + 5 for run in runs)

    def is_allowed(run):
        return len(run) == 1 or (len(run) * run[0] <= tokens_per_batch and (most_rows is None or len(run) <= most_rows))

    inner = range(1, len(ordered))
    all_cuts = [cut for size in range(len(ordered)) for cut in combinations(inner, size)]
    all_runs = [[ordered[left:right] for left, right in pairwise((0, *cut, len(ordered)))] for cut in all_cuts]
    assert all(map(is_allowed, dealt))
    assert cost(dealt) == min(cost(runs) for runs in all_runs if all(map(is_allowed, runs)))
