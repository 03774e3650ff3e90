"""The fast gather gives the batches that plain Python gives: drawn units concatenated, cut, shared segments counted once."""

import numpy as np
import pytest

from routing.fit.cut import cut_streams
from routing.fit.layout import lay_out, own_rows, window_ends, window_parts
from routing.fit.recut import real_batches
from tests.fit.worlds import batches_by_hand, random_counts


def _fast(counts, draws, batch_tokens):
    """[(stream, loads)] of every batch."""
    layout = lay_out(counts)
    loads_SX = counts.loads_SBL.reshape(len(counts.loads_SBL), -1)
    ends = window_ends(layout, batch_tokens)
    cut = cut_streams(layout, ends, draws, batch_tokens)
    windows = np.zeros((layout.num_steps, loads_SX.shape[1]))
    windows[ends >= 0] = window_parts(layout, ends, num_segments=len(loads_SX)) @ loads_SX
    found = windows[np.maximum(cut.window, 0)]
    found[cut.window < 0] = cut.own @ own_rows(layout, loads_SX) + cut.shared @ loads_SX[layout.shared_segments_X]
    return list(zip(cut.stream.tolist(), found.reshape(-1, *counts.loads_SBL.shape[1:]), strict=True))


@pytest.mark.parametrize("seed", range(80))
def test_resampled_batches_are_those_of_plain_python(seed):
    counts, rng = random_counts(seed), np.random.default_rng(1000 + seed)
    num_units = len(counts.units)
    draws = rng.integers(0, num_units, (int(rng.integers(1, 6)), int(rng.integers(1, 25))))
    batch_tokens = int(rng.integers(1, 120))
    expected = [(stream, one) for stream, some in enumerate(batches_by_hand(counts, draws, batch_tokens)) for one in some]
    found = _fast(counts, draws, batch_tokens)
    assert [stream for stream, _ in found] == [stream for stream, _ in expected]
    assert all((mine == theirs).all() for (_, mine), (_, theirs) in zip(found, expected, strict=True))


def test_more_than_a_word_of_shared_segments():
    # 100 segments of one token that two units share, in opposite order, and one own segment of each.
    counts = random_counts(0)
    ids = np.arange(100)
    counts = counts.__class__(
        trajectory_ids=np.repeat([0, 1], 101),
        segment_ids=np.concatenate([ids, [100], ids[::-1], [101]]),
        num_tokens=np.ones(202, dtype=np.int64),
        units_T=np.array([0, 1]),
        strata_T=np.array([0, 0]),
        unit_names=("a", "b"),
        stratum_names=("s",),
        layers=(0, 1),
        loads_SBL=np.arange(102 * 8, dtype=np.float64).reshape(102, 4, 2),
    )
    draws = np.array([[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0]])
    for batch_tokens in (1, 7, 90, 101, 102, 103):
        expected = [(stream, one) for stream, some in enumerate(batches_by_hand(counts, draws, batch_tokens)) for one in some]
        found = _fast(counts, draws, batch_tokens)
        assert [stream for stream, _ in found] == [stream for stream, _ in expected]
        assert all((mine == theirs).all() for (_, mine), (_, theirs) in zip(found, expected, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_the_counts_own_batches_are_one_stream_of_one_unit(seed):
    counts = random_counts(seed, num_units=1)
    found = real_batches(counts, batch_tokens=25, eps=(2, 4))
    expected = batches_by_hand(counts, [[0]], 25)[0]
    assert found.num_batches == len(expected)
    for batch, loads in enumerate(expected):
        assert found.rows_BL[batch].tolist() == loads.sum(axis=0).tolist()
        assert found.busiest_BNL[batch, 1].tolist() == loads.max(axis=0).tolist()
        assert found.busiest_BNL[batch, 0].tolist() == (loads[::2] + loads[1::2]).max(axis=0).tolist()
