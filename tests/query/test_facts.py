"""The facts of imbalance that need no statistics hold for what the queries answer."""

from fractions import Fraction

import numpy as np
import pytest

from routing.core.errors import CheckFailedError, InputError
from routing.query.imbalance import imbalance_rows
from routing.query.runner import connect, keep, run_sql
from tests.stores import measured_run, random_loads, random_tree, write_tiny_run

EPS = (2, 3, 4, 6, 12)


def _worsts(run, eps, batch_tokens):
    """Exact worst of every batch, by EP size."""
    measured = measured_run(run, eps=eps, batch_sizes=[batch_tokens])
    return {observed.ep: [one.imbalance(observed.ep) for one in observed.worsts] for observed in measured.observed}


def _random_run(folder, rng, *, num_segments=15, top_k=2):
    paths, segment_tokens = random_tree(rng, num_segments=num_segments)
    loads = random_loads(rng, segment_tokens=segment_tokens, layers=[0, 2], num_experts=12, top_k=top_k)
    return write_tiny_run(
        folder, paths=paths, segment_tokens=segment_tokens, loads=loads, num_experts=12, top_k=top_k, layers=[0, 2]
    )


@pytest.mark.parametrize("seed", range(4))
def test_imbalance_lies_between_even_and_the_smaller_of_ep_and_experts_over_top_k(tmp_path, seed):
    top_k = (1, 2, 4, 12)[seed]
    run = _random_run(tmp_path / "run", np.random.default_rng(seed), top_k=top_k)
    for ep, worsts in _worsts(run, EPS, 10).items():
        assert worsts
        assert all(1 <= worst <= min(ep, Fraction(12, top_k)) for worst in worsts)


@pytest.mark.parametrize("seed", range(4))
def test_nested_ranks_raise_imbalance_by_at_most_their_ratio(tmp_path, seed):
    run = _random_run(tmp_path / "run", np.random.default_rng(10 + seed))
    worsts = _worsts(run, EPS, 10)
    for few, many in [(2, 4), (2, 6), (2, 12), (3, 6), (3, 12), (4, 12), (6, 12)]:
        for smaller, larger in zip(worsts[few], worsts[many], strict=True):
            assert smaller <= larger <= Fraction(many, few) * smaller


def test_imbalance_need_not_rise_where_ranks_are_not_nested(tmp_path):
    # Experts 0 and 3 take all rows: one rank of three holds both (0..3), two ranks of four hold one each (0..2, 3..5).
    loads = {(0, 0): [6, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]}
    run = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[6], loads=loads, num_experts=12, top_k=2)
    rows, _ = imbalance_rows(run, eps=[3, 4], batch_sizes=[6])
    assert [row["worst_imbalance"] for row in rows] == [3.0, 2.0]


def test_a_rank_split_that_is_not_nested_is_found(tmp_path):
    """The check compares whole numbers; a busiest rank at EP 4 that holds more than the busiest at EP 2 can't be."""
    con = connect()
    con.execute(
        "CREATE TABLE layer_imbalances (ep INT, batch_tokens INT, batch INT, layer INT, busiest_rows BIGINT, routed_rows BIGINT)"
    )
    con.execute(
        "INSERT INTO layer_imbalances VALUES (2, 9, 0, 0, 6, 10), (4, 9, 0, 0, 3, 10), (2, 9, 1, 3, 5, 10), (4, 9, 1, 3, 6, 10)"
    )
    assert [row[:5] for row in run_sql(con, "checks/nested_ep.sql").fetchall()] == [(3, 9, 1, 2, 4)]
    con.execute("INSERT INTO layer_imbalances VALUES (8, 9, 0, 0, 1, 10)")  # 8 x 1 is below 4 x 3: rows are lost
    assert next(row[:5] for row in run_sql(con, "checks/nested_ep.sql").fetchall()) == (0, 9, 0, 2, 8)


@pytest.mark.parametrize("seed", range(4))
def test_merging_batches_that_share_no_segment_never_raises_the_worst_layer(tmp_path, seed):
    rng = np.random.default_rng(20 + seed)
    halves = [([[0]], [int(rng.integers(5, 30))]), ([[0]], [int(rng.integers(5, 30))])]
    loads = [random_loads(rng, segment_tokens=tokens, layers=[0], num_experts=12, top_k=2) for _, tokens in halves]
    merged = {(0, 0): loads[0][0, 0], (1, 0): loads[1][0, 0]}
    sizes = {"num_experts": 12, "top_k": 2}
    alone = [
        _worsts(
            write_tiny_run(tmp_path / f"half{place}", paths=paths, segment_tokens=tokens, loads=loads[place], **sizes), EPS, 5
        )
        for place, (paths, tokens) in enumerate(halves)
    ]
    tokens = [halves[0][1][0], halves[1][1][0]]
    both = write_tiny_run(tmp_path / "both", paths=[[0], [1]], segment_tokens=tokens, loads=merged, **sizes)
    for ep, (worst,) in _worsts(both, EPS, sum(tokens)).items():
        assert worst <= max(alone[0][ep][0], alone[1][ep][0])


def test_packed_batches_that_share_a_segment_may_be_worse_together(tmp_path):
    # Prefix (50, 0) with tails (0, 50), (0, 50): 1.0 each, 100 x 2 / 150 = 4/3 together.
    loads = {(0, 0): [50, 0], (1, 0): [0, 50], (2, 0): [0, 50]}
    run = write_tiny_run(tmp_path / "run", paths=[[0, 1], [0, 2]], segment_tokens=[50] * 3, loads=loads, num_experts=2, top_k=1)
    assert _worsts(run, [2], 100) == {2: [1, 1]}
    assert _worsts(run, [2], 150) == {2: [Fraction(4, 3)]}


@pytest.mark.parametrize("change", [-1, 1])
def test_a_single_row_more_or_less_is_a_hard_failure(tmp_path, change):
    loads = {(0, 0): [3, 1 + change]}
    run = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[4], loads=loads, num_experts=2, top_k=1)
    with pytest.raises(CheckFailedError, match="rows_conserved"):
        imbalance_rows(run, eps=[2], batch_sizes=[4])


def test_ep_must_divide_the_experts(tmp_path):
    run = _random_run(tmp_path / "run", np.random.default_rng(0))
    with pytest.raises(InputError, match="5 is refused, it does not divide 12 experts; valid sizes: 2, 3, 4, 6, 12"):
        imbalance_rows(run, eps=[5], batch_sizes=[4])


def test_a_table_kept_by_a_query_can_be_asked_again():
    con = connect()
    keep(con, "stored_loads", "sql/no_loads.sql")
    keep(con, "distinct", "sql/distinct_loads.sql")
    assert con.table("distinct").fetchall() == []
