"""Decimal arithmetic of allowances, and what an entry may never say."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from routing.core.allowance import (
    Entry,
    Evidence,
    Generated,
    TableModel,
    ceil_to,
    decimal_text,
    entries_hash,
    entry_faults,
    proven_ceiling,
)
from routing.core.shapes import ModelShape

SHAPE = ModelShape(num_layers=4, moe_layers=(1, 3), num_experts=12, top_k=5, hidden_size=8, expert_ffn_size=8)
EVIDENCE = Evidence(
    method="headroom-v1",
    parameters={},
    raw_bound=None,
    grid=Decimal("0.1"),
    ceiling=Decimal(2),
    ceiling_reason="",
    binds="core",
    num_batches=0,
    num_units=0,
    unit="",
    num_tokens=0,
    observed_max=None,
    median=None,
    p95=None,
    slack=None,
    worst_layers=(),
    floors=(),
    coverage=(),
    warnings=(),
    policies=(),
)


def _entry(ep, allowance, *, batch_tokens=100, layer="all"):
    return Entry(
        ep=ep, batch_tokens=batch_tokens, layer=layer, allowance=Decimal(allowance), status="headroom", evidence=EVIDENCE
    )


def _faults(*entries):
    return [(index, field) for index, field, _ in entry_faults(entries, SHAPE)]


@pytest.mark.parametrize(
    ("value", "grid", "rounded"),
    [
        ("1.324", "0.1", "1.4"),
        ("1.3", "0.1", "1.3"),  # ceil(1.3 / 0.1) * 0.1 in floats is 1.3000000000000003 or 1.4
        ("1.30000000000000000001", "0.1", "1.4"),
        ("1", "0.1", "1.0"),
        ("2.4", "0.01", "2.40"),
        ("0.7", "0.1", "0.7"),
    ],
)
def test_rounding_up_is_exact(value, grid, rounded):
    assert str(ceil_to(Fraction(value), Decimal(grid))) == rounded


def test_a_third_rounds_up():
    assert ceil_to(Fraction(4, 3), Decimal("0.1")) == Decimal("1.4")
    assert ceil_to(Fraction(4, 3), Decimal("0.01")) == Decimal("1.34")


def test_the_ceiling_is_the_smaller_of_ep_and_experts_over_top_k():
    assert proven_ceiling(8, num_experts=256, top_k=8)[0] == 8
    assert proven_ceiling(64, num_experts=256, top_k=8)[0] == 32
    ceiling, reason = proven_ceiling(4, num_experts=12, top_k=5)
    assert ceiling == Decimal("2.40")
    assert "12 / 5" in reason
    assert proven_ceiling(6, num_experts=12, top_k=7)[0] == Decimal("1.72")  # 12 / 7 = 1.714..., up to 0.01
    assert "one rank can hold every row" in proven_ceiling(2, num_experts=12, top_k=5)[1]


def test_a_decimal_is_written_with_a_point_and_without_an_exponent():
    assert [decimal_text(Decimal(text)) for text in ("2", "1.40", "1E+2", "1E-7")] == ["2.0", "1.40", "100.0", "0.0000001"]


def test_entries_without_a_contradiction_have_no_fault():
    assert (
        _faults(_entry(2, "1.4"), _entry(3, "2.1"), _entry(4, "1.4"), _entry(6, "2.1"), _entry(2, "1.9", batch_tokens=10)) == []
    )
    assert _faults(_entry(2, "1.4"), _entry(2, "1.4", layer=1), _entry(2, "1.0", layer=3)) == []


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (_entry(2, "0.9"), "allowance"),
        (_entry(2, "2.1"), "allowance"),
        (_entry(4, "2.5"), "allowance"),  # above 12 / 5
        (_entry(5, "1.4"), "ep"),
        (_entry(1, "1.0"), "ep"),
        (_entry(2, "1.4", batch_tokens=0), "batch_tokens"),
        (_entry(2, "1.4", layer=2), "layer"),
    ],
)
def test_an_entry_that_cannot_be_is_a_fault(entry, field):
    assert _faults(entry) == [(0, field)]


def test_an_allowance_falls_never_from_a_divisor():
    assert _faults(_entry(4, "1.3"), _entry(2, "1.4")) == [(0, "allowance")]
    assert _faults(_entry(2, "1.4", layer=3), _entry(4, "1.3", layer=3)) == [(1, "allowance")]
    assert _faults(_entry(2, "1.4", layer=3), _entry(4, "1.3", layer=1)) == []


@pytest.mark.parametrize("ep", [0, -2])
def test_an_ep_size_that_divides_nothing_beside_another_is_a_fault_of_its_own(ep):
    assert _faults(_entry(ep, "1.5"), _entry(4, "1.6")) == [(0, "ep")]


def test_a_layer_is_never_above_all_layers():
    assert _faults(_entry(2, "1.4", layer=3), _entry(2, "1.3")) == [(0, "allowance")]


def test_one_place_has_one_entry():
    assert _faults(_entry(2, "1.4"), _entry(2, "1.4")) == [(1, "ep")]


def test_the_hash_changes_with_any_entry_and_with_what_it_belongs_to():
    fields = {name: getattr(SHAPE, name) for name in ModelShape.__slots__}
    model = TableModel(name="m", shape_hash=SHAPE.shape_hash, aliases=(), **fields)
    entries = (_entry(2, "1.4"), _entry(4, "1.6"))
    made = Generated(tool_version="1", tool_commit=None, generated_at="2025-01-01T00:00:00Z")
    first = entries_hash(model, "contiguous", entries, made)
    others = [
        entries_hash(replace(model, name="n"), "contiguous", entries, made),
        entries_hash(replace(model, aliases=("n",)), "contiguous", entries, made),
        entries_hash(model, "contiguous", entries[:1], made),
        entries_hash(model, "contiguous", (replace(entries[0], allowance=Decimal("1.5")), entries[1]), made),
        entries_hash(model, "contiguous", (replace(entries[0], evidence=replace(EVIDENCE, num_batches=1)), entries[1]), made),
        entries_hash(model, "round-robin", entries, made),
        entries_hash(replace(model, shape_hash="0"), "contiguous", entries, made),
        entries_hash(model, "contiguous", entries, replace(made, generated_at="2024-01-01T00:00:00Z")),
    ]
    assert len({first, *others}) == 9
