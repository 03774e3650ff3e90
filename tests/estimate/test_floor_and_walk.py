"""Floor and walk against the same formulas added up the slow way, and the shape that per-layer allowances give the peak."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.wave import Adapter, Group, TermSwitches, Topology, Wave
from routing.stages.estimator import Estimator
from tests.estimate.oracle import Oracle
from tests.estimate.tables import table_of
from tests.estimate.waves import allowances, groups, shapes, waves


def flat_estimator(shape, allowance):
    return Estimator(shape=shape, table=table_of(shape, {(2, 1): str(allowance), (4, 1): str(allowance)}))


def layered_estimator(shape, flat, by_layer, ep):
    values = {(ep, 1): str(flat)} | {(ep, 1, layer): str(by_layer[layer]) for layer in shape.moe_layers}
    return Estimator(shape=shape, table=table_of(shape, values))


@settings(max_examples=150)
@given(data=st.data())
def test_the_floor_is_the_largest_stage_beside_all_boundaries(data):
    shape = data.draw(shapes())
    wave, allowance = data.draw(waves(shape)), data.draw(allowances())
    estimate = flat_estimator(shape, allowance).price(wave)
    rho = Fraction(1) if wave.topology.ep == 1 else Fraction(allowance)
    assert estimate.floor_bytes == Oracle(shape, wave, rho).floor()


@settings(max_examples=150)
@given(data=st.data())
def test_the_walk_is_the_largest_instant_of_any_layer(data):
    shape = data.draw(shapes())
    wave, flat = data.draw(waves(shape, single=True)), data.draw(allowances())
    by_layer = data.draw(st.lists(allowances(str(flat)), min_size=shape.num_layers, max_size=shape.num_layers))
    ep = wave.topology.ep
    if ep == 1:
        estimate, rhos = Estimator(shape=shape).price(wave), ()
    else:
        estimate, rhos = layered_estimator(shape, flat, by_layer, ep).price(wave), tuple(map(Fraction, by_layer))
    assert estimate.walk_bytes == Oracle(shape, wave, Fraction(1) if ep == 1 else Fraction(flat), rhos).walk()


@settings(max_examples=100)
@given(data=st.data())
def test_the_walk_is_never_under_the_bytes_of_any_routing_inside_the_table(data):
    shape = data.draw(shapes())
    topology = data.draw(st.sampled_from([Topology(ep=2, cp=2), Topology(ep=4, cp=4), Topology(ep=2, cp=1)]))
    wave, flat = data.draw(waves(shape, single=True, topology=topology)), data.draw(allowances())
    by_layer = data.draw(st.lists(allowances(str(flat)), min_size=shape.num_layers, max_size=shape.num_layers))
    true = tuple(1 + (Fraction(one) - 1) * data.draw(st.integers(0, 100)) / 100 for one in by_layer)
    estimate = layered_estimator(shape, flat, by_layer, topology.ep).price(wave, per_layer=True)
    assert estimate.total_bytes == estimate.walk_bytes >= Oracle(shape, wave, Fraction(flat), true).walk()


@settings(max_examples=150)
@given(data=st.data())
def test_the_walk_is_never_above_the_floor(data):
    from routing.core.wave import Observed

    shape = data.draw(shapes())
    wave, flat = data.draw(waves(shape)), data.draw(allowances())
    by_layer = data.draw(st.lists(allowances(str(flat)), min_size=shape.num_layers, max_size=shape.num_layers))
    lists = st.lists(allowances(), min_size=shape.num_layers, max_size=shape.num_layers)
    ep = wave.topology.ep
    seen = (
        data.draw(st.none() | st.builds(Observed, share=allowances()) | st.builds(Observed, share_by_layer=lists))
        if ep > 1
        else None
    )
    wave = replace(wave, observed=seen)
    estimator = layered_estimator(shape, flat, by_layer, max(ep, 2))
    for lower in (False, True):
        estimate = estimator.price(wave, lower_by_observed=lower)
        assert estimate.walk_bytes <= estimate.floor_bytes
        assert sum(term.bytes for term in estimate.terms) == estimate.total_bytes
        by_walk = estimator.price(wave, lower_by_observed=lower, per_layer=True)
        assert sum(term.bytes for term in by_walk.terms) == by_walk.total_bytes
        assert by_walk.total_bytes in (estimate.walk_bytes, estimate.floor_bytes)


def test_all_layers_at_one_tenth_give_the_figures_of_the_uniform_case(shape, ranked_wave):
    values = {(2, 2000): "1.4"} | {(2, 2000, layer): "1.1" for layer in range(40)}
    estimate = Estimator(shape=shape, table=table_of(shape, values)).price(ranked_wave, per_layer=True)
    # 26,792,462,164 - 10,563,400,244 + ceil(48,397 x 171,494.4)
    assert estimate.total_bytes == 24528876397
    assert estimate.floor_bytes == 26792462164
    assert (estimate.binding_rank, estimate.binding_layer) == (1, 39)
    assert (estimate.allowance.layer, estimate.allowance.value) == (39, Decimal("1.1"))
    assert round(100 * (estimate.total_bytes / 22.67e9 - 1), 1) == 8.2
    assert round(100 * (estimate.total_without_hybridep_bytes / 22.67e9 - 1), 1) == 3.6
    assert "layer 39 is priced at its own allowance" in estimate.floor_and_walk


def test_a_hot_layer_changes_the_peak_only_near_the_end(shape, ranked_wave):
    cool = {(2, 2000): "1.4"} | {(2, 2000, layer): "1.1" for layer in range(40)}
    walks = []
    for hot in range(40):
        table = table_of(shape, cool | {(2, 2000, hot): "1.4"})
        walks.append(Estimator(shape=shape, table=table).price(ranked_wave, per_layer=True).total_bytes)
    # 0.3 more costs 2,263,585,767 bytes. On rank 1 a boundary is 181,510,144 (attention input) or 199,065,600 bytes, an attention
    # stage 1,482 MB larger than a GDN one. Attention layer 31 stands with 8 boundaries fewer (1,522,302,976), 27 with 12 fewer
    # (2,283,454,464): the first below the peak. A hot GDN layer is largest on rank 0, which holds more boundaries: 33 stands
    # without those of 34..39 (3 attention and 3 GDN inputs), 32 with one GDN input fewer, which is below the peak.
    rank0 = 214958080 + 48194 * (94208 + 14864) + 48397 * 8192 + 10563400244 + 167777280 + 1053532160
    assert walks[33] == rank0 + 4096 * (17 * 52480 + 17 * 48194) == 24662883924
    assert rank0 + 4096 * (17 * 52480 + 16 * 48194) < 24528876397
    assert [layer for layer in range(40) if walks[layer] > 24528876397] == [31, 33, 34, 35, 36, 37, 38, 39]
    assert walks[31] == 24528876397 + 2263585767 - 4 * (181510144 + 199065600)
    assert walks[39] == 26792462164


def test_the_floor_is_the_total_where_no_layer_has_its_own_allowance(estimator, ranked_wave):
    estimate = estimator.price(ranked_wave, per_layer=True)
    assert estimate.total_bytes == estimate.floor_bytes
    assert "no_layer_allowances" in estimate.allowance.warnings


def test_at_cp1_the_gdn_stage_is_the_larger_one_and_the_walk_is_below_the_floor(shape):
    wave = Wave(
        model=shape.name, topology=Topology(ep=1, cp=1), groups=(Group(attention_rows=(50000,), longest_packed_tokens=50000),)
    )
    estimate = Estimator(shape=shape).price(wave)
    assert (estimate.binding_layer, next(term for term in estimate.terms if term.name == "mixer").bytes_per_row) == (38, 81920)
    # layer 38 runs when layer 39's boundary is released, 4,096 x 50,000 bytes; that is less than the (81,920 - 68,608) x 50,000
    # by which layer 39's mixer is smaller
    assert estimate.floor_bytes - estimate.walk_bytes == 204800000


def test_pending_adapters_move_the_walk_of_a_short_wave_to_the_first_layer(shape):
    wave = Wave(
        model=shape.name,
        topology=Topology(ep=1, cp=1),
        adapter=Adapter(expert_rank=8),
        groups=(Group(attention_rows=(100,), longest_packed_tokens=100),),
        terms=TermSwitches(cold_transients=False),
    )
    estimate = Estimator(shape=shape).price(wave)
    # 23,068,672 pending bytes a layer against 409,600 of a boundary: X = 40 x 23,068,672 - 39 x 409,600, at layer 0, a GDN layer
    adapters = next(term for term in estimate.terms if term.name == "adapter_gradients")
    assert adapters.bytes == 40 * 23068672 - 39 * 409600
    assert estimate.walk_bytes == estimate.floor_bytes


@settings(max_examples=60)
@given(data=st.data())
def test_several_groups_keep_their_boundaries_together_and_one_stage_counts(data):
    shape = data.draw(shapes(all_moe=True))
    topology = Topology(ep=1, cp=2)
    pair = [data.draw(groups(topology, shape, staged=False)) for _ in range(2)]
    both = Wave(model="tiny", topology=topology, groups=tuple(pair))
    estimator = Estimator(shape=shape)
    together = estimator.price(both)
    alone = [estimator.price(replace(both, groups=(one,))) for one in pair]
    hidden = shape.hidden_size * 2
    for rank in range(2):
        rests = [next(one for one in each.ranks if one.rank == rank).without_adapters_bytes for each in alone]
        kept = [
            sum(Oracle(shape, both, Fraction(1)).boundary(one, rank, layer) for layer in range(shape.num_layers))
            + hidden * max(one.attention_rows)
            for one in pair
        ]
        # each alone, plus what the other group keeps
        assert together.ranks[rank].without_adapters_bytes == max(rests[0] + kept[1], rests[1] + kept[0])
