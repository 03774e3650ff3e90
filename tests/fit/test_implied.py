"""An EP size without data follows from those with data by nested ranks alone, and changes none of them."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.allowance import entry_faults
from routing.core.errors import InputError
from routing.core.placement import valid_ep_sizes
from routing.core.shapes import ModelShape
from routing.fit.implied import implied_allowance, implied_entries
from routing.fit.published import fit_published
from routing.fit.steps import Raw, stepped
from routing.fit.table import table_model
from tests.fit.figures import ALL, GENERATED, SHAPE

PUBLISHED = {2: Decimal("1.4"), 4: Decimal("1.6"), 8: Decimal("2.0")}


@pytest.mark.parametrize(
    ("ep", "fitted", "num_experts", "top_k", "value", "binds"),
    [
        (16, PUBLISHED, 256, 8, "4.0", "ep=8"),  # 8 x 1.4 = 11.2, 4 x 1.6 = 6.4, 2 x 2.0 = 4.0
        (4, {2: Decimal("1.4"), 8: Decimal("2.0")}, 256, 8, "2.0", "ep=8"),  # 2 x 1.4 = 2.8
        (64, {8: Decimal("7.5")}, 256, 8, "32.00", "ceiling"),  # 8 x 7.5 = 60, E / k = 32
        (3, {2: Decimal("1.4")}, 24, 12, "2.00", "ceiling"),  # f_3 <= f_6 <= 3 f_2 = 4.2, E / k = 2
        (12, {8: Decimal("1.1")}, 24, 1, "3.3", "ep=8"),  # f_12 <= f_24 <= 3 f_8
        (12, {4: Decimal("3.0"), 6: Decimal("1.2")}, 24, 1, "3.0", "ep=4"),  # 2 x 1.2 = 2.4, and never below a divisor's
    ],
)
def test_a_size_without_data_is_implied_by_nested_ones(ep, fitted, num_experts, top_k, value, binds):
    assert implied_allowance(ep, fitted, num_experts=num_experts, top_k=top_k) == (Decimal(value), binds)


def test_published_figures_imply_the_sizes_that_they_lack():
    model = table_model("toy", SHAPE)
    asked = {"model": model, "reference_batch_tokens": 200_000, "generated": GENERATED}
    table, (caution,) = fit_published(ALL, **asked, eps=(2, 16, 32))
    assert [(one.ep, str(one.allowance), one.status) for one in table.entries] == [
        (2, "1.4", "published"),
        (4, "1.6", "published"),
        (8, "2.0", "published"),
        (16, "4.0", "implied"),
        (32, "8.0", "implied"),
    ]
    assert table.entries[:3] == fit_published(ALL, **asked)[0].entries
    assert "EP 16 has no data and is implied by ep=8" in caution.message
    implied = table.entries[3].evidence
    assert (implied.binds, implied.num_batches, implied.observed_max, implied.slack) == ("ep=8", 0, None, None)
    assert implied.warnings[0].startswith("implied: EP 16 has no data, 4.0 follows from ep=8")
    assert "Only min(EP, E/k) = 16 is proven." in implied.coverage


def test_a_size_that_does_not_divide_is_refused_with_those_that_do():
    table, _ = fit_published(ALL, model=table_model("toy", SHAPE), reference_batch_tokens=200_000, generated=GENERATED)
    with pytest.raises(InputError, match="--ep: 3 is refused, it does not divide 256 experts; valid sizes: 2, 4, 8, 16, 32"):
        list(implied_entries(table.entries, eps=(3,), model=table.model))


PROPERTY_SHAPE = ModelShape(num_layers=1, moe_layers=(0,), num_experts=48, top_k=2, hidden_size=8, expert_ffn_size=8)
SIZES = st.sampled_from(valid_ep_sizes(48))


@given(
    raws=st.dictionaries(st.tuples(st.sampled_from((2_000, 20_000)), SIZES), st.fractions(1, 24), min_size=1),
    asked=st.lists(SIZES),
)
def test_implied_entries_contradict_no_entry_and_change_none(raws, asked):
    model = table_model("toy", PROPERTY_SHAPE)
    template, _ = fit_published(ALL, model=table_model("toy", SHAPE), reference_batch_tokens=200_000, generated=GENERATED)
    allowed = stepped({place: Raw(value=value, binds="x") for place, value in raws.items()}, num_experts=48, top_k=2)
    entries = tuple(
        replace(template.entries[0], batch_tokens=size, ep=ep, allowance=one.allowance) for (size, ep), one in allowed.items()
    )
    implied = tuple(implied_entries(entries, eps=asked, model=model))
    assert list(entry_faults((*entries, *implied), PROPERTY_SHAPE)) == []
    assert not {(one.batch_tokens, one.ep) for one in implied} & set(allowed)
