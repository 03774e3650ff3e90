"""What must hold of every price, whatever the wave."""

from dataclasses import replace
from decimal import Decimal

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from routing.core.wave import Adapter, Group, Stage, TermSwitches, Topology, Wave
from routing.estimate.layout import rank_rows
from routing.estimate.rates import rates_of
from routing.stages.estimator import Estimator
from routing.store.waves import parse_wave, wave_text
from tests.estimate.tables import table_of
from tests.estimate.waves import allowances, groups, shapes, splits, topologies, waves


def priced(shape, wave, allowance="1.4"):
    table = table_of(shape, {(2, 1): str(allowance), (4, 1): str(allowance)})
    return Estimator(shape=shape, table=table).price(wave)


def term_bytes(estimate, name):
    return sum(term.bytes for term in estimate.terms if term.name == name)


@settings(max_examples=80)
@given(data=st.data())
def test_a_larger_allowance_never_lowers_the_estimate(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape))
    low, high = sorted(data.draw(st.tuples(allowances(), allowances())))
    one, other = priced(shape, wave, low), priced(shape, wave, high)
    assert one.floor_bytes <= other.floor_bytes
    assert one.walk_bytes <= other.walk_bytes
    assert one.required_bytes <= other.required_bytes


@settings(max_examples=80)
@given(data=st.data())
def test_more_layers_never_lower_the_estimate(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape))
    longer = replace(shape, mixers=(*shape.mixers, shape.mixers[-1]), moe_layers=(*shape.moe_layers, shape.num_layers))
    one, other = priced(shape, wave), priced(longer, wave)
    assert one.floor_bytes <= other.floor_bytes
    assert one.walk_bytes <= other.walk_bytes


@settings(max_examples=80)
@given(data=st.data(), ranks=st.tuples(st.integers(8, 100), st.integers(8, 100)))
def test_an_adapter_rank_growing_from_eight_never_lowers_the_estimate(data, ranks):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape))
    one, other = (priced(shape, replace(wave, adapter=Adapter(expert_rank=rank))) for rank in sorted(ranks))
    assert one.floor_bytes <= other.floor_bytes
    assert one.walk_bytes <= other.walk_bytes


def test_rank_seven_costs_more_than_rank_eight(shape, flat_wave, estimator):
    # padding of FC1 and FC2 at r < 8: 128 experts x 8 x (2,048 + 2 x 512 + 512 + 2,048) x 2 bytes, on the same rank columns
    seven = estimator.price(replace(flat_wave, adapter=Adapter(expert_rank=7)))
    assert seven.total_bytes - estimator.price(flat_wave).total_bytes == 128 * 8 * 5632 * 2
    assert next(term for term in seven.terms if term.name == "routed_stage").bytes_per_row is None


@settings(max_examples=120)
@given(data=st.data())
def test_more_rows_on_a_rank_never_lower_its_total_where_nothing_is_mirrored(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape, single=True, staged=False))
    group = wave.groups[0]
    rank = data.draw(st.integers(0, wave.topology.cp - 1))
    more = data.draw(st.integers(1, 500))
    bigger = replace(group, attention_rows=_more(group.attention_rows, rank, more), gdn_rows=_more(group.gdn_rows, rank, more))
    one, other = priced(shape, wave), priced(shape, replace(wave, groups=(bigger,)))
    for before, after in zip(one.ranks, other.ranks, strict=True):
        if before.rank == after.rank:
            assert before.total_bytes <= after.total_bytes
    assert one.total_bytes <= other.total_bytes


@settings(max_examples=120)
@given(data=st.data())
def test_more_rows_on_a_rank_lower_its_total_through_retention_alone(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape, single=True, staged=True, topology=Topology(ep=data.draw(st.sampled_from([1, 2])), cp=2)))
    group = wave.groups[0]
    more = data.draw(st.integers(1, 500))
    rows = _more(group.attention_rows, 0, more)
    own = tuple(
        replace(one, q=rows[0], k=rows[0], q_len=rows[0], k_len=rows[0]) if one.kind == "local" else one
        for one in group.attention_stages[0]
    )
    bigger = replace(
        group,
        attention_rows=rows,
        gdn_rows=_more(group.gdn_rows, 0, more),
        attention_stages=(own or _local(rows[0]), group.attention_stages[1]),
    )
    one, other = priced(shape, wave), priced(shape, replace(wave, groups=(bigger,)))
    executor = rates_of(shape, wave.topology.ep, 2, 0).executor
    from routing.estimate.executor import retained_bytes

    kept = [retained_bytes(each.attention_stages[0], executor) for each in (group, bigger)]
    assert other.ranks[0].total_bytes >= one.ranks[0].total_bytes - max(0, kept[0] - kept[1])


def test_aligning_a_local_stage_drops_a_copy_and_the_total_dips(shape):
    # 383 rows pad to 384 queries and keep an output copy, 8,256 x 383 bytes; 384 rows need none. One row more costs far less.
    def wave(rows):
        stages = ((Stage(kind="local", q=rows, k=rows, q_len=rows, k_len=rows),), _local(100))
        group = Group(attention_rows=(rows, 100), gdn_rows=(100, 100), attention_stages=stages, longest_packed_tokens=500)
        return Wave(model=shape.name, topology=Topology(ep=1, cp=2), groups=(group,))

    estimator = Estimator(shape=shape)
    before, after = estimator.price(wave(383)), estimator.price(wave(384))
    assert term_bytes(before, "executor_retention") - term_bytes(after, "executor_retention") == 8256 * 383
    # a row: 20 boundaries and a gradient, 68,608 of the mixer, 8,192 of residual and norm, 3,332 of the router, 3,072 and
    # 8,192 of the shared expert, 188,416 of the routed stage; 383 and 384 keys pad to the same
    assert after.total_bytes - before.total_bytes == 21 * 4096 + 68608 + 8192 + 3332 + 3072 + 8192 + 188416 - 8256 * 383


@settings(max_examples=120)
@given(data=st.data())
def test_a_term_of_one_rank_and_layer_falls_with_more_rows_only_for_retention_and_adapters(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape, single=True, topology=data.draw(topologies())))
    group = wave.groups[0]
    assume(group.attention_stages is None)
    more = data.draw(st.integers(1, 500))
    rows = tuple(one + more for one in group.attention_rows)
    bigger = replace(
        group, attention_rows=rows, gdn_rows=None if group.gdn_rows is None else tuple(one + more for one in group.gdn_rows)
    )
    one, other = priced(shape, wave), priced(shape, replace(wave, groups=(bigger,)))
    if (one.binding_rank, one.binding_layer) == (other.binding_rank, other.binding_layer):
        for term in one.terms:
            if term.name not in ("executor_retention", "adapter_gradients", "adapter_gradients_covered"):
                assert term.bytes <= term_bytes(other, term.name)


@settings(max_examples=150)
@given(data=st.data(), rows=st.integers(1, 12000))
def test_the_lower_bound_is_never_above_any_layouts_price(data, rows):
    shape = data.draw(shapes())
    topology = data.draw(topologies())
    allowance, by_layer = data.draw(allowances()), None
    if topology.ep > 1:
        by_layer = data.draw(st.lists(allowances(str(allowance)), min_size=shape.num_layers, max_size=shape.num_layers))
    values = {(ep, 1): str(allowance) for ep in (2, 4)}
    values |= {(ep, 1, layer): str(by_layer[layer]) for ep in (2, 4) for layer in shape.moe_layers if by_layer}
    estimator = Estimator(shape=shape, table=table_of(shape, values))
    wave = data.draw(waves(shape, single=True, topology=topology))
    wave = replace(wave, groups=(data.draw(groups(topology, shape, total_rows=rows)),))
    for options in ({}, {"per_layer": True}, {"mode": "proven"}):
        assert estimator.lower_bound(rows, topology, **options) <= estimator.price(wave, **options).total_bytes


@settings(max_examples=60)
@given(data=st.data())
def test_splitting_a_group_never_raises_the_even_share(data):
    topology = Topology(ep=2, cp=2)
    whole = data.draw(splits(2))
    first = tuple(data.draw(st.integers(0, rows)) for rows in whole)
    rest = tuple(rows - part for rows, part in zip(whole, first, strict=True))
    executor = rates_of(data.draw(shapes()), 2, 2, 0).executor
    shares = []
    for rows in (whole, first, rest):
        if sum(rows):
            shares.append(
                rank_rows(Group(attention_rows=rows, longest_packed_tokens=1), topology, (0, 1), executor)[0].even_attention
            )
    assert max(shares[1:]) <= shares[0]


@settings(max_examples=150)
@given(data=st.data())
def test_terms_add_up_and_a_pair_is_its_bytes_rounded_up(data):
    shape = data.draw(shapes())
    estimate = priced(shape, data.draw(waves(shape)), data.draw(allowances()))
    assert sum(term.bytes for term in estimate.terms) == estimate.total_bytes
    for term in estimate.terms:
        assert (term.rows is None) == (term.bytes_per_row is None)
        if term.rows is not None:
            exact = term.rows * term.bytes_per_row
            assert term.bytes - 1 < exact <= term.bytes
    assert {term.rank for term in estimate.terms} == {estimate.binding_rank}


@settings(max_examples=150)
@given(data=st.data())
def test_a_wave_survives_a_yaml_round_trip_byte_for_byte(data):
    from routing.core.wave import Observed

    shape = data.draw(shapes())
    wave = data.draw(waves(shape))
    names = st.text(min_size=1, max_size=30).filter(str.isprintable)
    shares = st.lists(st.none() | allowances(), min_size=1, max_size=5).filter(lambda some: any(some))
    seen = st.none() | st.builds(Observed, share=allowances()) | st.builds(Observed, share_by_layer=shares)
    wave = replace(wave, model=data.draw(names), observed=data.draw(seen) if wave.topology.ep > 1 else None)
    text = wave_text(wave)
    again = parse_wave(text, where="wave.yaml")
    assert again == wave
    assert wave_text(again) == text


@settings(max_examples=60)
@given(data=st.data())
def test_switched_off_terms_are_what_they_would_add(data):
    shape = data.draw(shapes())
    wave = data.draw(waves(shape))
    on, off = (priced(shape, replace(wave, terms=TermSwitches(adapter_gradients=one))) for one in (True, False))
    assert on.total_bytes - off.total_bytes == term_bytes(on, "adapter_gradients")
    assert term_bytes(off, "adapter_gradients") == term_bytes(off, "adapter_gradients_covered") == 0


def test_outputs_count_twice_in_what_is_required_under_context_parallelism(estimator, flat_wave):
    from routing.core.wave import Output

    outputs = (Output(kind="target_logprob", rows=1000), Output(kind="top_k", rows=10, k=20), Output(kind="hidden", rows=3))
    some = (*outputs, Output(kind="logits", rows=2))
    num_bytes = 4000 + 12 * 200 + 3 * 4096 + 2 * 496640
    with_outputs, without = estimator.price(replace(flat_wave, outputs=some)), estimator.price(flat_wave)
    assert with_outputs.total_bytes - without.total_bytes == num_bytes
    assert with_outputs.required_bytes == (25752213044 + 2 * num_bytes) * 11 // 10 + 1053532160 * 11 // 10


def test_the_head_is_an_alternative_to_the_decoder_stage(shape):
    from routing.core.wave import Head

    group = Group(attention_rows=(10,), longest_packed_tokens=10, gradient=True)
    wave = Wave(model=shape.name, topology=Topology(ep=1, cp=1), groups=(group,), terms=TermSwitches(cold_transients=False))
    estimator = Estimator(shape=shape)
    with_targets = estimator.price(replace(wave, head=Head(projected_rows=10_000)))
    assert with_targets.binding_layer is None
    assert term_bytes(with_targets, "lm_head") == 3 * 254279680
    assert with_targets.total_bytes == 3 * 254279680 + 41 * 4096 * 10  # no TE workspaces beside it
    logits = estimator.price(replace(wave, head=Head(projected_rows=100, targets=False)))
    assert logits.total_bytes == estimator.price(wave).total_bytes  # one chunk of 49,664,000 bytes is below the workspaces alone


def test_a_group_without_gradient_holds_nothing_but_its_forward_stage(shape):
    group = Group(attention_rows=(1000,), longest_packed_tokens=1000, gradient=False)
    wave = Wave(model=shape.name, topology=Topology(ep=1, cp=1), groups=(group,))
    estimate = Estimator(shape=shape).price(wave)
    assert {term.name: term.bytes for term in estimate.terms} == {
        "no_gradient_hidden": 4 * 4096 * 1000,
        "shared_expert_return": 4096 * 1000,
        "routed_stage": 188416 * 1000,
    }


def test_observed_routing_raises_rows_and_never_lowers_them(estimator, shape, flat_wave):
    from routing.core.wave import Observed

    # 48,397 x 1.60 / 1.40 = 55,310.9: rows 55,311 priced at 218,265.6 a row, and 8,192 for each of the shared expert's rows
    raised = estimator.price(replace(flat_wave, observed=Observed(share=Decimal("1.50"))))
    pairs = {term.name: term for term in raised.terms}
    assert (pairs["routed_stage"].rows, pairs["routed_stage"].bytes) == (55311, 12072488602)
    assert pairs["shared_expert_return"].rows == 55311
    assert estimator.price(replace(flat_wave, observed=Observed(share=Decimal("1.08")))).total_bytes == 26805745204


def test_lowering_by_observed_routing_is_asked_for_and_named(estimator, flat_wave):
    from routing.core.wave import Observed

    wave = replace(flat_wave, observed=Observed(share=Decimal("1.08")))
    lowered = estimator.price(wave, lower_by_observed=True)
    assert lowered.allowance.value == Decimal("1.18")
    assert "lowered_by_observed" in lowered.allowance.warnings
    assert term_bytes(lowered, "routed_stage") == 8903437348  # ceil(48,397 x 155,904 x 1.18 = 8,903,437,347.84)


def _more(rows, rank, more):
    return None if rows is None else tuple(one + more * (at == rank) for at, one in enumerate(rows))


def _local(rows):
    return (Stage(kind="local", q=rows, k=rows, q_len=rows, k_len=rows),) if rows else ()
