"""`headroom-v1` in exact decimals."""

from decimal import Decimal
from fractions import Fraction

import pytest

from routing.fit.headroom import headroom_allowances

# data/published/routing_worsts.csv, for Qwen3.6-35B-A3B (256 experts, top-8), as published: at 200k tokens the
# pretrained and the trained policy gave 1.22 and 1.24 at EP 2, 1.40 and 1.41 at EP 4, 1.62 and 1.61 at EP 8.
WORSTS = {2: Fraction("1.24"), 4: Fraction("1.41"), 8: Fraction("1.62")}
# Other values: 1.35 inferred from production at EP 2, 1.95 of a small rollout sample at EP 8.
FLOORS = {2: Fraction("1.35"), 8: Fraction("1.95")}


def _allowances(worsts, *, num_experts=256, top_k=8, floors=None):
    exact = {ep: Fraction(worst) for ep, worst in worsts.items()}
    fitted = headroom_allowances(exact, num_experts=num_experts, top_k=top_k, floors=floors)
    return {ep: (str(one.allowance), one.binds) for ep, one in fitted.items()}


def test_the_published_worsts_give_the_published_allowances():
    fitted = headroom_allowances(WORSTS, num_experts=256, top_k=8, floors=FLOORS)
    assert {ep: str(one.allowance) for ep, one in fitted.items()} == {2: "1.4", 4: "1.6", 8: "2.0"}
    # Cores 1.324, 1.5535 and 1.837: the floors 1.35 and 1.95 are above the first and the last.
    assert {ep: one.raw_bound for ep, one in fitted.items()} == {2: Fraction("1.35"), 4: Fraction("1.5535"), 8: Fraction("1.95")}
    assert [one.binds for one in fitted.values()] == ["floor", "core", "floor"]


def test_without_floors_the_core_decides():
    assert _allowances(WORSTS) == {2: ("1.4", "core"), 4: ("1.6", "core"), 8: ("1.9", "core")}


def test_headroom_is_on_the_excess_over_even():
    # 1 + 1.35 x 0.2 = 1.27; 1 + 1.35 x 0 = 1.
    assert _allowances({2: "1.2"}) == {2: ("1.3", "core")}
    assert _allowances({2: 1}) == {2: ("1.0", "core")}


def test_a_bound_on_the_grid_stays_there():
    # 1 + 1.35 x 2/9 = 1.3 exactly, where floats give 1.3000000000000003.
    assert _allowances({2: Fraction(11, 9)}) == {2: ("1.3", "core")}
    assert _allowances({2: Fraction(11, 9) + Fraction(1, 10**30)}) == {2: ("1.4", "core")}


def test_an_allowance_is_at_least_that_of_every_divisor():
    assert _allowances({8: "1.1", 2: "1.5", 4: "1.2"}) == {2: ("1.7", "core"), 4: ("1.7", "ep=2"), 8: ("1.7", "ep=2")}


def test_divisibility_and_not_size_orders_ep():
    assert _allowances({4: "1.5", 6: "1.2"}, num_experts=12, top_k=1) == {4: ("1.7", "core"), 6: ("1.3", "core")}


def test_an_allowance_is_at_most_ep():
    assert _allowances({2: "1.9"}) == {2: ("2", "ceiling")}


@pytest.mark.parametrize(("num_experts", "top_k", "allowance"), [(64, 32, "2.00"), (12, 7, "1.72")])
def test_an_allowance_is_at_most_experts_over_top_k(num_experts, top_k, allowance):
    # 12 / 7 = 1.7142..., up to 0.01.
    assert _allowances({4: Fraction(num_experts, top_k)}, num_experts=num_experts, top_k=top_k) == {4: (allowance, "ceiling")}


def test_no_size_gives_no_allowance():
    assert _allowances({}) == {}


def test_every_observed_value_is_covered():
    for busiest in range(50, 101):
        worst = Fraction(busiest * 2, 100)
        (fitted,) = headroom_allowances({2: worst}, num_experts=64, top_k=8).values()
        assert worst <= Fraction(fitted.allowance) <= 2
        assert fitted.allowance % Decimal("0.1") == 0
