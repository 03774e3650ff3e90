"""The lower bound that split searches use, and the largest wave that fits a budget."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.errors import InputError
from routing.core.wave import Adapter, Group, Topology, Wave
from routing.stages.estimator import Estimator
from tests.estimate.tables import table_of
from tests.estimate.waves import shapes

EP2_CP2 = Topology(ep=2, cp=2)


def test_the_bound_is_the_even_share_with_the_least_attention_state(estimator):
    # 48,397 rows: 40 boundaries and a gradient; a GDN layer's 94,208 (an attention layer has 68,608 + 18,560, less),
    # 14,864 + 8,192 beside it; 155,648 x 1.4 routed
    expected = 48397 * (41 * 4096 + 94208 + 14864 + 8192) + -(-48397 * 155648 * 14 // 10)
    assert estimator.lower_bound(96794, EP2_CP2) == expected


def test_the_bound_is_below_the_published_layout(estimator, ranked_wave, flat_wave):
    bound = estimator.lower_bound(96794, EP2_CP2)
    assert bound < estimator.price(ranked_wave).total_bytes < estimator.price(flat_wave).total_bytes


def test_the_bound_grows_with_rows_at_one_allowance(estimator):
    bounds = [estimator.lower_bound(rows, EP2_CP2) for rows in range(2000, 60000, 500)]
    assert bounds == sorted(bounds)


def test_no_rows_have_no_bound(estimator):
    with pytest.raises(InputError, match="total_rows: 0 is below 1"):
        estimator.lower_bound(0, EP2_CP2)


def required(estimator, template, rows, topology):
    half = (rows - rows // 2, rows // 2) if topology.cp == 2 else (rows,)
    group = Group(attention_rows=half, gdn_rows=half if estimator.shape.has_gdn else None, longest_packed_tokens=rows)
    return estimator.price(replace(template, groups=(group,), topology=topology)).required_bytes


@settings(max_examples=40)
@given(data=st.data(), megabytes=st.integers(1, 800))
def test_the_largest_wave_fits_and_one_row_more_does_not(data, megabytes):
    shape = data.draw(shapes())
    topology = data.draw(st.sampled_from([EP2_CP2, Topology(ep=1, cp=2), Topology(ep=1, cp=1)]))
    template = Wave(
        model=shape.name,
        topology=topology,
        adapter=data.draw(st.none() | st.builds(Adapter, expert_rank=st.integers(1, 16))),
        groups=(Group(attention_rows=(1,) * topology.cp, longest_packed_tokens=2),),
        te_workspaces_held=True,
        first_gradient_execution=False,
    )
    estimator = Estimator(shape=shape, table=table_of(shape, {(2, 1): "1.6"}))
    budget = megabytes * 10**6
    found = estimator.largest_wave(topology, budget, shape=template)
    if found.rows == 0:
        assert required(estimator, template, 1, topology) > budget
    else:
        assert found.estimate.required_bytes == required(estimator, template, found.rows, topology) <= budget
        assert required(estimator, template, found.rows + 1, topology) > budget
    assert found.binding_term in {term.name for term in found.estimate.terms}


def test_a_larger_batch_may_fit_where_its_allowance_is_smaller(shape):
    estimator = Estimator(shape=shape, table=table_of(shape, {(2, 2000): "2.0", (2, 30000): "1.0"}))
    at = {rows: required(estimator, _template(shape), rows, EP2_CP2) for rows in (29999, 30000)}
    assert at[30000] < at[29999]
    found = estimator.largest_wave(EP2_CP2, at[30000], shape=_template(shape))
    assert (found.rows, found.estimate.allowance.value) == (30000, Decimal(1))
    below = estimator.largest_wave(EP2_CP2, at[30000] - 1, shape=_template(shape))
    assert below.rows < 29999
    assert required(estimator, _template(shape), below.rows + 1, EP2_CP2) > at[30000] - 1


def test_the_largest_wave_says_what_binds(estimator):
    found = estimator.largest_wave(EP2_CP2, 60_000_000_000)
    assert found.binding_term == "routed_stage"
    assert found.wave.groups[0].attention_rows == (found.rows - found.rows // 2, found.rows // 2)
    nothing = estimator.largest_wave(EP2_CP2, 1000)
    assert (nothing.rows, nothing.binding_term) == (0, "te_workspaces")
    with pytest.raises(InputError, match="budget_bytes: 0 is below 1"):
        estimator.largest_wave(EP2_CP2, 0)


def _template(shape):
    return Wave(
        model=shape.name,
        topology=EP2_CP2,
        groups=(Group(attention_rows=(1, 1), longest_packed_tokens=2),),
        held_hybridep_rows=10**6,
    )
