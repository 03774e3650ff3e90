"""The one public case with bytes: Qwen3.6-35B-A3B, EP2/CP2, 40 layers, cold, real data; 26.81 GB estimated, 22.67 GB measured."""

from dataclasses import replace
from decimal import Decimal

import pytest

from routing.core.layers import LayerKind
from routing.core.wave import Adapter, Group, Stage, TermSwitches, Topology, Wave
from routing.estimate.executor import executor_rates, retained_bytes
from routing.estimate.hybridep import hybridep_buffer
from routing.estimate.layout import boundary_layouts, rank_rows
from routing.estimate.rates import attention_own_bytes, mixer_bytes, rates_of, router_state_bytes
from routing.estimate.routed import ratio, routed_price, routed_stages
from routing.stages.estimator import Estimator
from tests.estimate.tables import table_of

PUBLISHED_PEAK_BYTES = 22_670_000_000
PUBLISHED_TERMS = {
    "boundaries": 8598323200,  # 40 x 4,096 x 52,480
    "incoming_gradient": 214958080,  # 4,096 x 52,480
    "mixer": 4997775360,  # 95,232 x 52,480
    "residual_norm": 429916160,  # 8,192 x 52,480
    "router_state": 188928000,  # 3,600 x 52,480
    "shared_expert": 161218560,  # 3,072 x 52,480
    "shared_expert_return": 429916160,  # 8,192 x 52,480
    "routed_stage": 10563400244,  # 48,397 x 218,265.6, rounded up
    "te_workspaces": 167777280,
    "hybridep_buffer": 1053532160,
}


def over(num_bytes):
    return round(100 * (num_bytes / PUBLISHED_PEAK_BYTES - 1), 1)


def test_every_term_of_the_published_case_is_met_to_the_byte(estimator, flat_wave):
    estimate = estimator.price(flat_wave)
    assert {term.name: term.bytes for term in estimate.terms} == PUBLISHED_TERMS
    assert estimate.total_bytes == 26805745204
    assert (estimate.binding_rank, estimate.floor_bytes, estimate.walk_bytes) == (0, 26805745204, 26805745204)


def test_the_published_case_is_over_by_what_was_published(estimator, flat_wave):
    estimate = estimator.price(flat_wave)
    assert over(estimate.total_bytes) == 18.2
    assert over(estimate.total_without_hybridep_bytes) == 13.6


def test_rows_times_bytes_per_row_rounded_up_are_a_terms_bytes(estimator, flat_wave):
    pairs = {term.name: (term.rows, term.bytes_per_row) for term in estimator.price(flat_wave).terms}
    assert pairs["routed_stage"] == (48397, Decimal("218265.6"))
    assert pairs["boundaries"] == (52480, Decimal(163840))
    assert pairs["hybridep_buffer"] == (96832, Decimal(10880))
    assert pairs["te_workspaces"] == (None, None)


def test_required_is_a_tenth_above_each_part_rounded_down(estimator, flat_wave):
    # floor(1.1 x 25,752,213,044) + floor(1.1 x 1,053,532,160) = 28,327,434,348 + 1,158,885,376
    assert estimator.price(flat_wave).required_bytes == 29486319724
    assert estimator.price(flat_wave, outside_bytes=1_700_000_000).required_bytes == 29486319724 + 1_700_000_000


def test_at_the_even_share_without_the_buffer_the_sum_is_within_half_a_percent_above_the_peak(shape, flat_wave):
    even = Estimator(shape=shape, table=table_of(shape, {(2, 2000): "1.0"})).price(flat_wave)
    assert even.total_without_hybridep_bytes == 22734098688  # 25,752,213,044 - 48,397 x (218,265.6 - 155,904), no rounding
    assert 1 <= even.total_without_hybridep_bytes / PUBLISHED_PEAK_BYTES < 1.005


def test_by_rank_the_second_rank_binds_at_the_published_percentage(estimator, ranked_wave):
    estimate = estimator.price(ranked_wave)
    assert (estimate.binding_rank, estimate.binding_layer) == (1, 39)
    # 7,611,514,880 boundaries + 214,958,080 gradient + 44,314 x 68,608 + 3,085,833,088 retained + 44,314 x 14,864
    # + 48,397 x 8,192 + 10,563,400,244 + 167,777,280 + 1,053,532,160
    assert estimate.total_bytes == 26792462164
    assert over(estimate.total_bytes) == 18.2
    # 8,247,214,080 + 214,958,080 + 52,480 x 68,608 + 974,028,800 + 52,480 x 23,056 + 10,563,400,244 + 167,777,280 + 1,053,532,160
    assert estimate.ranks[0].total_bytes == 26031437364


def test_boundaries_follow_the_layout_that_each_layers_input_arrives_in(shape, ranked_wave, estimator):
    counts = boundary_layouts(shape, None)
    assert (counts.attention[-1], counts.gdn[-1]) == (20, 20)
    assert shape.input_layouts[:8] == ("attention", "gdn", "gdn", "attention") * 2
    per_row = 20 * 4096
    rank0, rank1 = per_row * (52480 + 48194), per_row * (44314 + 48600)
    assert (rank0 / 1e9, rank1 / 1e9) == (pytest.approx(8.248, abs=0.01), pytest.approx(7.612, abs=0.01))
    boundaries = {term.name: term for term in estimator.price(ranked_wave).terms}["boundaries"]
    assert (boundaries.bytes, boundaries.rows, boundaries.bytes_per_row) == (rank1, None, None)


def test_recorded_layer_inputs_replace_the_pattern(shape, ranked_wave, estimator):
    all_attention = estimator.price(replace(ranked_wave, layer_inputs=("attention",) * 40))
    terms = {term.name: term.bytes for term in all_attention.terms}
    # rank 0 has 26,031,437,364 + 4,096 x 20 x (52,480 - 48,194), rank 1 26,792,462,164 - 4,096 x 20 x (48,600 - 44,314)
    assert [one.total_bytes for one in all_attention.ranks] == [26382546484, 26441353044]
    assert terms["boundaries"] == 40 * 4096 * 44314


@pytest.mark.parametrize(
    ("rank", "retained", "with_rows", "gb"), [(0, 974028800, 4144660480, 4.15), (1, 3085833088, 5763107712, 5.76)]
)
def test_the_executors_retention_is_mirrored_stage_by_stage(shape, ranked_wave, rank, retained, with_rows, gb):
    group, rates = ranked_wave.groups[0], executor_rates(shape)
    assert tuple(rates) == (8192, 2048, 8320, 8256, 16448)
    assert retained_bytes(group.attention_stages[rank], rates) == retained
    assert attention_own_bytes(shape) == 60416
    assert retained + 60416 * group.attention_rows[rank] == with_rows
    assert with_rows / 1e9 == pytest.approx(gb, abs=0.01)


def test_each_stage_of_the_second_rank_keeps_what_was_published(shape, ranked_wave):
    local, remote = ranked_wave.groups[0].attention_stages[1]
    rates = executor_rates(shape)
    tape = 16448 * 44314
    assert retained_bytes([local], rates) == 1190086272
    assert retained_bytes([local, remote], rates) - retained_bytes([local], rates) == 1895746816
    assert retained_bytes([remote], rates) == 1895746816 - tape  # alone it needs no merge tape


def test_the_flat_floor_stands_where_stages_are_not_known(shape):
    assert mixer_bytes(shape, "attention", cp=2, mirrored=False) * 52480 == 4997775360
    assert mixer_bytes(shape, "attention", cp=2, mirrored=True) == mixer_bytes(shape, "attention", cp=1, mirrored=False) == 68608
    assert [mixer_bytes(shape, "gdn", cp=cp, mirrored=True) for cp in (1, 2)] == [81920, 94208]


def test_the_router_state_is_marked_where_it_is_beyond_its_calibration(shape, estimator, flat_wave):
    assert [router_state_bytes(shape, ep=ep) for ep in (1, 2, 4)] == [(3332, False), (3600, False), (3600, True)]
    assert not {"router_extrapolated"} & {one.code for one in estimator.price(flat_wave).cautions}


def test_the_even_share_is_of_all_ranks_rows_and_not_clamped(shape):
    group = Group(attention_rows=(52480, 44314), gdn_rows=(48194, 48600), longest_packed_tokens=96794)
    rates = rates_of(shape, 2, 2, 8)
    rows = rank_rows(group, Topology(ep=2, cp=2), (0, 1), rates.executor)
    assert [one.even_attention for one in rows] == [48397, 48397]
    assert [one.even_gdn for one in rows] == [48397, 48397]
    busiest = rank_rows(group, Topology(ep=2, cp=2, ep_group_is_cp_group=False), (0, 1), rates.executor)
    assert [(one.even_attention, one.even_gdn) for one in busiest] == [(52480, 48600)] * 2
    local = rank_rows(group, Topology(ep=1, cp=2), (0, 1), rates.executor)
    assert [(one.even_attention, one.even_gdn) for one in local] == [(52480, 48194), (44314, 48600)]


def test_the_hybridep_buffer_is_the_allocators(shape):
    buffer = hybridep_buffer(shape, ep=2, cp=2, etp=1, longest_packed_tokens=96794, busiest_rows=52480)
    assert buffer == (96832, 2 * (4096 + 5 * 256 + 4 * 16))
    assert buffer.rows * buffer.bytes_per_row == 1053532160


def test_a_buffer_as_large_is_not_charged_and_a_grown_one_in_full(estimator, flat_wave):
    held = {rows: estimator.price(replace(flat_wave, held_hybridep_rows=rows)) for rows in (96831, 96832)}
    assert held[96831].hybridep_bytes == 1053532160
    assert held[96832].hybridep_bytes == 0
    assert held[96832].total_bytes == 26805745204 - 1053532160


def test_45981_packed_rows_at_ep1_take_the_published_bytes(shape):
    stages = {stage.name: stage for stage in routed_stages(shape, ep=1, rank=0, gradient=False)}
    assert stages["FC2 sum"].bytes_per_row == 188416
    assert 45981 * stages["FC2 sum"].bytes_per_row == 8663556096
    # two dispatched inputs and FC1 gate/up beyond an FC2-only floor: 8 x 2 x (2 x 2,048 + 2 x 512)
    fc2_only = 8 * 2 * (3 * 2048 + 512)
    assert 45981 * (188416 - fc2_only) == 3766763520


def test_the_drop_from_the_busiest_rank_to_the_even_share_is_priced_by_row(shape):
    stages = routed_stages(shape, ep=1, rank=0, gradient=False)
    busiest, even = (routed_price(stages, rows, ((1, 1), None)).num_bytes for rows in (52480, 48397))
    assert busiest - even == 769302528  # 4,083 x 188,416


def test_one_gradient_instead_of_forty_removes_the_published_over_charge():
    assert pytest.approx(8.4, abs=0.05) == 39 * 4096 * 52480 / 1e9


def test_a_tenth_of_allowance_and_a_boundary_cost_what_was_published(shape):
    stages = routed_stages(shape, ep=2, rank=8, gradient=True)
    bytes_at = {rho: routed_price(stages, 48397, (ratio(Decimal(rho)), None)).num_bytes for rho in ("1.3", "1.4")}
    assert (bytes_at["1.4"] - bytes_at["1.3"]) / 1e9 == pytest.approx(0.755, abs=0.0005)
    assert pytest.approx(0.215, abs=0.0005) == 4096 * 52480 / 1e9


def test_a_short_wave_pairs_adapter_extras_with_their_own_rank(estimator):
    # 3,000 rows: even attention, all GDN rows on rank 0. Boundaries of a layer: attention input 4,096 x 1,500 on both; GDN input
    # 4,096 x 3,000 on rank 0, none on rank 1. Pending a layer 11,534,336 (EP 2, r = 8), between the two. Layers 1 and 2 have GDN
    # inputs: going down to them rank 0 releases more than it adds, so it peaks at layer 2, rank 1 at layer 0:
    # X_0 = 38 x 11,534,336 - (19 x 6,144,000 + 18 x 12,288,000) = 100,384,768
    # X_1 = 40 x 11,534,336 - 19 x 6,144,000                      = 344,637,440
    wave = Wave(
        model="qwen3.6-35b-a3b",
        topology=Topology(ep=2, cp=2),
        adapter=Adapter(expert_rank=8),
        groups=(Group(attention_rows=(1500, 1500), gdn_rows=(3000, 0), longest_packed_tokens=3000),),
        terms=TermSwitches(cold_transients=False),
    )
    estimate = estimator.price(wave)
    ranks = estimate.ranks
    assert [one.adapter_extra_bytes for one in ranks] == [100384768, 344637440]
    # rank 0 at a GDN layer: (94,208 + 14,864 + 8,192) x 3,000; rank 1 at an attention one: (95,232 + 14,864 + 8,192) x 1,500;
    # its boundaries are 20 x 12,288,000 fewer; routed stage, gradient, workspaces and buffer are the same
    assert ranks[0].without_adapters_bytes - ranks[1].without_adapters_bytes == 20 * 12288000 + 117264 * 3000 - 118288 * 1500
    paired = max(one.total_bytes for one in ranks)
    assert estimate.total_bytes == paired == ranks[0].total_bytes
    assert estimate.unpaired_bytes == ranks[0].without_adapters_bytes + 344637440
    assert estimate.unpaired_bytes - estimate.total_bytes == 344637440 - 100384768 == 244252672
    assert "244,252,672" in estimate.explain()
    reported = next(term for term in estimate.terms if term.name == "adapter_gradients")
    without = estimator.price(replace(wave, terms=TermSwitches(cold_transients=False, adapter_gradients=False)))
    assert reported.bytes == estimate.total_bytes - without.total_bytes == 100384768


def test_adapters_of_another_rank_than_binds_without_them_are_reported_as_what_they_add(estimator, ranked_wave):
    # Rank 1 with 20,000 remote queries has the larger stage, rank 0 the larger boundaries, by 635,699,200 bytes. Without adapters
    # rank 0 binds; at r = 256 a layer's pending 369,098,752 bytes are more than its boundary, so both peak at layer 0, and rank 1
    # binds.
    group = ranked_wave.groups[0]
    remote = Stage(kind="remote", q=20000, k=1000, q_len=20000, k_len=1024)
    stages = (group.attention_stages[0], (group.attention_stages[1][0], remote))
    wave = replace(ranked_wave, groups=(replace(group, attention_stages=stages),), adapter=Adapter(expert_rank=256))
    without = estimator.price(wave)
    estimate = estimator.price(replace(wave, terms=TermSwitches(cold_transients=False)))
    assert (without.binding_rank, estimate.binding_rank) == (0, 1)
    terms = {term.name: term.bytes for term in estimate.terms}
    assert terms["adapter_gradients"] == estimate.total_bytes - without.total_bytes
    rests = [one.without_adapters_bytes for one in estimate.ranks]
    assert terms["adapter_gradients_covered"] == rests[0] - rests[1] > 0
    assert terms["adapter_gradients"] + terms["adapter_gradients_covered"] == estimate.ranks[1].adapter_extra_bytes
    # 40 layers pending, 39 boundaries released: 19 attention and 20 GDN inputs
    assert estimate.ranks[1].adapter_extra_bytes == 40 * 369098752 - 4096 * (19 * 44314 + 20 * 48600)
    assert sum(terms.values()) == estimate.total_bytes


def test_expert_adapter_gradients_take_the_published_bytes(shape):
    from routing.estimate.adapters import pending_gradients

    one = pending_gradients(shape, 1, Adapter(expert_rank=8))
    assert one.from_layer[-1] == 23068672
    assert one.in_decoder / 1e6 == pytest.approx(922.7, abs=0.05)
    assert pending_gradients(shape, 2, Adapter(expert_rank=8)).from_layer[-1] == 23068672 // 2


def test_the_layer_kinds_of_the_model_are_thirty_and_ten(shape):
    kinds = rates_of(shape, 2, 2, 8).kinds
    assert kinds.count(LayerKind("gdn", "moe")) == 30
    assert kinds.count(LayerKind("attention", "moe")) == 10
