"""`strat-boot-v3`: what must hold whatever the counts are, and a world whose true level is known."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from routing.core.allowance import proven_ceiling
from routing.fit import gumbel, resample, strat_boot
from routing.fit.counts import Counts
from routing.fit.repeated import Repeated, repeated_text
from routing.fit.resample import Levels, resampled_levels
from routing.fit.steps import Raw, stepped, within
from tests.fit.worlds import random_counts

PLACES = [(size, ep) for size in (2_000, 20_000, 200_000) for ep in (2, 3, 4, 8)]
RAWS = st.dictionaries(st.sampled_from(PLACES), st.fractions(1, 9), min_size=1)


def _stepped(raws):
    return stepped({place: Raw(value=value, binds="x") for place, value in raws.items()}, num_experts=24, top_k=4)


@pytest.fixture
def small(monkeypatch):
    """A tenth of the batches and pools: what is checked here holds at any number."""
    monkeypatch.setattr(resample, "NUM_BATCHES", 200)
    monkeypatch.setattr(resample, "NUM_POOLS", 20)


@given(RAWS)
def test_no_allowance_is_below_its_bound_or_above_what_is_proven(raws):
    for (size, ep), one in _stepped(raws).items():
        ceiling, _ = proven_ceiling(ep, num_experts=24, top_k=4)
        assert Fraction(one.allowance) >= min(raws[size, ep], Fraction(ceiling))
        assert one.allowance <= ceiling


@given(RAWS)
def test_allowances_rise_along_divisors_and_fall_with_the_batch(raws):
    found = {place: one.allowance for place, one in _stepped(raws).items()}
    for (size, ep), allowance in found.items():
        for (other_size, other_ep), other in found.items():
            if (other_size == size and other_ep % ep == 0) or (other_ep == ep and other_size < size):
                assert allowance <= other


@given(RAWS, RAWS)
def test_a_layer_is_never_above_all_layers(raws, layer):
    of_all = _stepped(raws)
    found = within(_stepped({place: value for place, value in layer.items() if place in raws}), of_all)
    assert all(one.allowance <= of_all[place].allowance for place, one in found.items())


def _high(counts, **changes):
    asked = {"batch_tokens": 30, "eps": (2, 4), "by_layer": True, "seed": 7, **changes}
    found = resampled_levels(counts, **asked)
    return found.estimate_NC.tobytes() + found.low_NC.tobytes() + found.high_NC.tobytes()


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), factor=st.integers(2, 9))
def test_scaled_counts_and_the_same_counts_give_the_same_bytes(seed, factor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resample, "NUM_BATCHES", 100)
        patch.setattr(resample, "NUM_POOLS", 5)
        counts = random_counts(seed)
        counts = replace(counts, loads_SBL=counts.loads_SBL + 1)
        if not counts.own_units:
            return
        assert _high(counts) == _high(counts) == _high(replace(counts, loads_SBL=counts.loads_SBL * factor))
        swapped = counts.loads_SBL[:, [1, 0, 3, 2]]  # inside each rank of EP 2
        assert _high(counts, eps=(2,)) == _high(replace(counts, loads_SBL=swapped), eps=(2,))


def test_batches_without_spread_are_their_own_level(small):
    # Three of four rows on rank 0 in every segment and layer: 3 x 2 / 4 = 1.5 at EP 2 however units are drawn.
    counts = random_counts(3, num_units=6)
    loads = np.tile(np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [0.0, 0.0]]), (len(counts.loads_SBL), 1, 1))
    found = resampled_levels(replace(counts, loads_SBL=loads), batch_tokens=20, eps=(2,), by_layer=False, seed=1)
    assert (found.estimate_NC, found.low_NC, found.high_NC) == (1.5, 1.5, 1.5)


def test_the_level_of_a_gumbel_law_is_found():
    # location 1.2, scale 0.05: passed once in 1,000 at 1.2 - 0.05 ln(-ln 0.999) = 1.2 + 0.05 x 6.9073 = 1.5454.
    sample = stats.gumbel_r.rvs(loc=1.2, scale=0.05, size=(1, 200_000), random_state=5)
    assert gumbel.levels(sample)[0] == pytest.approx(1.5454, abs=0.003)


@pytest.mark.parametrize(
    ("text", "share", "stratum", "value", "binds"),
    [
        (1.1, "1", 1.1, "1.2", "resampled"),  # r = 1 + 1.5 x 0.1 = 1.15
        (1.1, "1", 1.3, "1.3", "stratum odd"),
        (1.5, "1", 1.3, "1.75", "repeated text"),  # r = 1 + 1.5 x 0.5
        (1.5, "1/2", 1.3, "1.475", "repeated text"),  # half of the batch at 1.75, half at H
        (1.5, "1/10", 1.3, "1.3", "stratum odd"),  # 0.175 + 0.9 x 1.2 = 1.255
    ],
)
def test_the_largest_of_mix_strata_and_repeated_text_binds(text, share, stratum, value, binds):
    found = strat_boot.Resampled(
        eps=(2,),
        layers=(0,),
        mix=_levels(1.2),
        strata={"even": _levels(1.1), "odd": _levels(stratum)},
        thin_strata=(),
        num_trajectories=100,
        repeated=Repeated(imbalance_NC=np.array([[text]]), beyond_share=Fraction("0.05"), share=Fraction(share)),
    )
    assert found.bound(2, None) == Raw(value=Fraction(value), binds=binds)


def test_repeated_text_is_as_uneven_as_the_segments_that_one_token_in_twenty_stands_in():
    # 20 segments of 10 tokens: 19 with 3 rows of 4 on rank 0 (1.5), one with all (2). At 95% of tokens 1.5; at 19 of 21, 2.
    ids = np.arange(20)
    counts = replace(
        _world(np.random.default_rng(1), 20),
        loads_SBL=np.array([[[3.0], [1.0]]] * 19 + [[[4.0], [0.0]]]),
        trajectory_ids=np.repeat([0, 1], 10),
    )
    asked = {"batch_tokens": 500, "eps": (2,), "by_layer": True}  # five trajectories: 5% of tokens are beyond
    found = repeated_text(counts, **asked)
    assert found.imbalance_NC.tolist() == [[1.5, 1.5]]
    assert found.share == Fraction(2, 5)  # twice the 100 tokens of either trajectory
    assert repeated_text(replace(counts, num_tokens=np.where(ids == 19, 20, 10)), **asked).imbalance_NC.tolist() == [[2, 2]]
    # Blocks of 3, 0, 1, 0 rows: 3 x 2 / 4 on the first half of the blocks, all of them on every second.
    blocks = replace(counts, loads_SBL=np.tile(np.array([[3.0], [0.0], [1.0], [0.0]]), (20, 1, 1)))
    assert repeated_text(blocks, **asked).imbalance_NC.tolist() == [[1.5, 1.5]]
    assert repeated_text(replace(blocks, is_strided=True), **asked).imbalance_NC.tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("batch_tokens", "beyond", "imbalance"),
    [
        (10_000, "0.05", 1.5),  # 5% at most, which is ten tokens: beyond 190
        (500, "0.05", 1.5),
        (499, "0.0499", 2),
        (100, "0.01", 2),  # the tokens of one trajectory
        (10, "0.001", 2),
    ],
)
def test_a_smaller_batch_takes_odder_text(batch_tokens, beyond, imbalance):
    # Two trajectories of 100 tokens, in 20 segments of 10; the last one is odd.
    counts = replace(
        _world(np.random.default_rng(1), 20),
        loads_SBL=np.array([[[3.0], [1.0]]] * 19 + [[[4.0], [0.0]]]),
        trajectory_ids=np.repeat([0, 1], 10),
    )
    found = repeated_text(counts, batch_tokens=batch_tokens, eps=(2,), by_layer=False)
    assert (found.beyond_share, found.imbalance_NC.tolist()) == (Fraction(beyond), [[imbalance]])


def test_a_shared_segment_makes_trajectories_bring_less():
    # Both trajectories begin with the same 10 tokens: they bring 190 in all, and 95 are the tokens of one.
    counts = replace(
        _world(np.random.default_rng(1), 20),
        trajectory_ids=np.repeat([0, 1], 10),
        segment_ids=np.array([*range(10), 0, *range(11, 20)]),
    )
    assert repeated_text(counts, batch_tokens=95, eps=(2,), by_layer=False).beyond_share == Fraction("0.01")


def test_repeated_text_is_dealt_by_the_counts_own_placement():
    # Blocks of 5, 3, 2 and 2 rows: contiguous ranks hold 8 and 4 of 12 (8 / 6), round-robin ones 7 and 5 (7 / 6).
    loads = np.array([[[5.0], [3.0], [2.0], [2.0]]] * 20)
    counts = replace(_world(np.random.default_rng(1), 20), loads_SBL=loads)
    asked = {"batch_tokens": 400, "eps": (2,), "by_layer": False}
    assert repeated_text(counts, **asked).imbalance_NC.tolist() == [[pytest.approx(8 / 6)]]
    assert repeated_text(replace(counts, is_strided=True), **asked).imbalance_NC.tolist() == [[pytest.approx(7 / 6)]]


def _levels(high):
    return Levels(estimate_NC=np.array([[1.0]]), low_NC=np.array([[1.0]]), high_NC=np.array([[high]]))


def test_thin_counts_do_not_carry_the_rule():
    counts = _world(np.random.default_rng(1), 20)
    assert strat_boot.is_enough(10, counts)
    assert not strat_boot.is_enough(9, counts)
    assert not strat_boot.is_enough(10, _world(np.random.default_rng(1), 19))
    assert not strat_boot.is_enough(500, random_counts(1, num_units=19))
    assert not strat_boot.is_enough(500, random_counts(1, num_units=1))


def _world(rng, num_units):
    """Units of one segment of 10 tokens, one layer, two ranks; rank 0 holds 100,000 (1 + x) of 200,000 rows, x Gumbel.

    A batch of 10 tokens is one unit, so its imbalance 1 + x (x > 0 in all but none) follows that law exactly.
    """
    excess = np.clip(stats.gumbel_r.rvs(loc=0.2, scale=0.03, size=num_units, random_state=rng), 0, 1)
    first = np.round(100_000 * (1 + excess))
    ids = np.arange(num_units)
    return Counts(
        trajectory_ids=ids,
        segment_ids=ids,
        num_tokens=np.full(num_units, 10),
        units_T=ids,
        strata_T=np.zeros(num_units, dtype=np.int64),
        unit_names=tuple(map(str, ids)),
        stratum_names=("made",),
        layers=(0,),
        loads_SBL=np.stack([first, 200_000 - first], axis=1)[:, :, None],
    )


def test_the_true_level_of_a_known_law_is_covered_in_57_of_60_worlds(small):
    """Over 20 pools, to be quick: their 97.5% point is close to the largest, where 200 pools leave five above it."""
    # The law's 99.9th percentile: 1.2 + 0.03 x 6.9073 = 1.40722.
    rng = np.random.default_rng(20260101)
    covered = 0
    for seed in range(60):
        counts = _world(rng, 115)
        bound = resampled_levels(counts, batch_tokens=10, eps=(2,), by_layer=False, seed=seed).high_NC[0, 0]
        observed = counts.loads_SBL[:, 0, 0].max() / 100_000
        covered += max(bound, observed) >= 1.40722
    assert covered >= 0.95 * 60


def test_a_pool_without_the_one_large_unit_still_fills_batches(small):
    # 20 units of 10 tokens and one of 5,000: about a third of the pools lack it, and have at most 210 tokens for a batch of 400.
    counts = _world(np.random.default_rng(1), 21)
    tokens = np.full(21, 10)
    tokens[-1] = 5_000
    loads = np.stack([tokens, tokens], axis=1).astype(np.float64)[:, :, None]
    found = resampled_levels(
        replace(counts, num_tokens=tokens, loads_SBL=loads), batch_tokens=400, eps=(2,), by_layer=False, seed=1
    )
    assert found.high_NC[0, 0] == 1  # even in every segment, hence in every batch
