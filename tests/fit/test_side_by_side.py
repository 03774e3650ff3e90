"""Policies side by side: a layer's imbalance over the whole run, and what drawing other units does to the difference."""

import numpy as np
import pytest

from routing.fit.counts import Counts
from routing.fit.side_by_side import NUM_DRAWS, drawn_imbalances, layer_differences


def _counts(loads_SBL, *, units, segments):
    """One trajectory a unit; `segments` are those of each unit's trajectory, in order."""
    steps = [(unit, segment) for unit, path in enumerate(segments) for segment in path]
    return Counts(
        trajectory_ids=np.array([unit for unit, _ in steps]),
        segment_ids=np.array([segment for _, segment in steps]),
        num_tokens=np.ones(len(steps), dtype=np.int64),
        units_T=np.arange(len(units)),
        strata_T=np.zeros(len(units), dtype=np.int64),
        unit_names=tuple(units),
        stratum_names=("one",),
        layers=tuple(range(loads_SBL.shape[2])),
        loads_SBL=loads_SBL.astype(np.float64),
    )


def _world(rng, num_units=30, num_blocks=4, num_layers=2):
    """Unit u holds segment 0, which all share, and its own segment u + 1."""
    loads = rng.integers(1, 50, (num_units + 1, num_blocks, num_layers))
    return _counts(loads, units=[f"u{place}" for place in range(num_units)], segments=[[0, at + 1] for at in range(num_units)])


def test_the_first_draw_is_the_run_itself_with_shared_segments_once():
    # segment 0 is shared: (6, 2); own: (1, 3) and (1, 1). Sums: (8, 6), busiest 8 x 2 / 14
    counts = _counts(np.array([[[6], [2]], [[1], [3]], [[1], [1]]]), units=["a", "b"], segments=[[0, 1], [0, 2]])
    assert drawn_imbalances(counts, eps=(2,), seed=0)[0, 0, 0] == pytest.approx(16 / 14)


def test_a_unit_drawn_twice_counts_its_own_segments_twice_and_shared_ones_once():
    counts = _counts(np.array([[[6], [2]], [[1], [3]], [[1], [1]]]), units=["a", "b"], segments=[[0, 1], [0, 2]])
    # drawn a, a: (6 + 2, 2 + 6); a, b: (8, 6); b, b: (8, 4)
    possible = {1.0, 16 / 14, 16 / 12}
    found = drawn_imbalances(counts, eps=(2,), seed=0)[1:, 0, 0]
    assert len(found) == NUM_DRAWS
    assert {round(one, 9) for one in found.tolist()} == {round(one, 9) for one in possible}


def test_a_run_beside_itself_has_not_moved():
    counts = _world(np.random.default_rng(0))
    for one in layer_differences(counts, counts, eps=(2, 4), seeds=(5, 5)):
        assert (one.difference, one.low, one.high, one.is_beyond) == (0, 0, 0, False)


def test_a_layer_that_all_units_route_otherwise_is_beyond_and_the_other_layer_is_not():
    counts = _world(np.random.default_rng(1))
    moved = counts.loads_SBL.copy()
    moved[:, 0, 1] *= 3  # block 0 of layer 1 gets three times the rows, in every segment
    other = _counts(moved, units=counts.unit_names, segments=[[0, at + 1] for at in range(30)])
    found = {one.layer: one for one in layer_differences(counts, other, eps=(4,), seeds=(5, 5))}
    assert (found[0].difference, found[0].is_beyond) == (0, False)
    assert found[1].is_beyond
    assert found[1].low > 0


def test_one_odd_unit_is_not_beyond():
    """What a single unit of 30 does is undone in the draws without it, more than one in three."""
    counts = _world(np.random.default_rng(2))
    moved = counts.loads_SBL.copy()
    moved[7, 0, 0] += 2000
    other = _counts(moved, units=counts.unit_names, segments=[[0, at + 1] for at in range(30)])
    found = {one.layer: one for one in layer_differences(counts, other, eps=(4,), seeds=(5, 5))}
    assert found[0].difference > 0.1
    assert not found[0].is_beyond
