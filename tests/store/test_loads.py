"""Counts become dense rows, and no part that lost or gained a row is written."""

import numpy as np
import pytest

from routing.core.errors import CheckFailedError
from routing.store.loads import loads_table, require_conserved

TOKENS = np.array([3, 2], dtype=np.int64)
# Two segments, layers 1 and 3, three experts, top-2.
LOADS = np.array([[[3, 2, 1], [2, 2, 2]], [[2, 2, 0], [0, 2, 2]]], dtype=np.int32)


def require(loads):
    require_conserved(loads, TOKENS, first_segment=10, top_k=2, layers=[1, 3])


def test_conserved_counts_pass():
    require(LOADS)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0, 2, 1], "layer 3, segment 11: 3 routed rows, expected 2 tokens x top-2 = 4"),
        ([0, 2, 3], "layer 3, segment 11: 5 routed rows"),
        ([0, 4, 0], "layer 3, segment 11: 4 routed rows, expected 2 tokens x top-2 = 4, at most 2 an expert"),
        ([-1, 3, 2], "layer 3, segment 11"),
    ],
)
def test_a_wrong_row_is_named_by_layer_and_segment_though_the_sum_be_right(row, said):
    loads = LOADS.copy()
    loads[1, 1] = row
    with pytest.raises(CheckFailedError, match=said):
        require(loads)


def test_the_table_is_dense_sorted_and_keeps_zeros():
    loads_SLE = np.array([[[3, 0], [1, 2]], [[0, 0], [4, 5]]], dtype=np.int32)
    table = loads_table(loads_SLE, first_segment=10, layers=[1, 3])
    assert table.to_pydict() == {
        "segment_id": [10, 10, 10, 10, 11, 11, 11, 11],
        "layer": [1, 1, 3, 3, 1, 1, 3, 3],
        "expert": [0, 1, 0, 1, 0, 1, 0, 1],
        "routed_rows": [3, 0, 1, 2, 0, 0, 4, 5],
    }
