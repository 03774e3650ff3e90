"""Which entry prices a group, what is said where none fits, and how several groups are looked up."""

from dataclasses import replace
from decimal import Decimal

import pytest

from routing.core.errors import InputError
from routing.core.wave import Group, Topology, Wave
from routing.estimate.lookup import AllowanceBook
from routing.stages.estimator import Estimator
from routing.store.model_shapes import find_shape
from tests.estimate.tables import table_of

SIZES = {(2, 2000): "1.8", (2, 20000): "1.6", (2, 200000): "1.4", (4, 20000): "2.0"}


@pytest.fixture(scope="module")
def book(shape):
    return AllowanceBook(shape, table_of(shape, SIZES))


@pytest.mark.fault(
    "a batch size that was not fitted",
    how="rows below, between and above the fitted sizes",
    tries=4,
    outcome="the largest fitted size below; else the smallest, with a warning",
)
@pytest.mark.parametrize(
    ("rows", "batch_tokens", "value", "codes"),
    [
        (1999, 2000, "1.8", ["below_fitted_batch"]),
        (2000, 2000, "1.8", []),
        (19999, 2000, "1.8", []),
        (20000, 20000, "1.6", []),
        (96794, 20000, "1.6", []),
        (200000, 200000, "1.4", []),
        (200001, 200000, "1.4", ["above_fitted_batch"]),
    ],
)
def test_the_largest_fitted_batch_that_is_not_above_the_rows_prices_them(book, rows, batch_tokens, value, codes):
    found = book.find(ep=2, rows=rows, mode="fitted", strict=False)
    assert (found.batch_tokens, found.value) == (batch_tokens, Decimal(value))
    assert [caution.code for caution in found.cautions] == codes


def test_an_ep_that_can_not_be_fitted_is_not_proposed_for_a_fit(book):
    with pytest.raises(InputError, match=r"^allowances: ep: 3 is refused, it does not divide 256 experts; valid sizes: 2, 4"):
        book.find(ep=3, rows=5000, mode="fitted", strict=False)


def test_strict_refuses_rows_below_the_smallest_fitted_batch(book):
    with pytest.raises(InputError, match=r"^below_fitted_batch: 1999 rows .* routing fit RUN --batch-tokens 1999$"):
        book.find(ep=2, rows=1999, mode="fitted", strict=True)
    assert book.find(ep=2, rows=2000, mode="fitted", strict=True).batch_tokens == 2000


@pytest.mark.fault(
    "an EP that was not fitted",
    how="EP 16 asked of a table of 2 and 4",
    tries=1,
    outcome="exit 2 with the command that fits it",
)
def test_an_ep_without_allowance_names_the_command_that_fits_it(book):
    with pytest.raises(
        InputError, match=r"no allowance for ep=16 \(has 2, 4\); measure it: routing fit RUN --ep 2,4,16 --out FILE"
    ):
        book.find(ep=16, rows=5000, mode="fitted", strict=False)


@pytest.mark.fault(
    "an EP that was not fitted, with --mode proven",
    how="EP 16 and 64 asked without an entry",
    tries=3,
    outcome="the proven ceiling",
)
def test_what_is_proven_needs_no_entry(book, shape):
    assert book.find(ep=16, rows=5, mode="proven", strict=True).value == 16
    assert book.find(ep=64, rows=5, mode="proven", strict=True).value == 32  # 256 / 8 experts of a token are distinct
    assert AllowanceBook(shape, None).find(ep=64, rows=5, mode="proven", strict=True).status == "proven"


def test_one_rank_has_every_row(shape):
    found = AllowanceBook(shape, None).find(ep=1, rows=5, mode="fitted", strict=True)
    assert (found.value, found.batch_tokens) == (1, None)


@pytest.mark.fault(
    "an estimator given the table of another model",
    how="a shape with other fields than the table's",
    tries=1,
    outcome="exit 2, the fields named",
)
def test_another_models_table_is_refused_naming_what_differs(shape):
    other = find_shape("qwen3-30b-a3b")
    with pytest.raises(
        InputError, match=r"the table is of qwen3-30b-a3b, another model than qwen3\.6-35b-a3b \(.*num_experts.* differ\)"
    ):
        Estimator(shape=shape, table=table_of(other, {(2, 2000): "1.4"}))


def test_an_equal_shape_by_another_name_is_taken(shape):
    assert find_shape("Qwen/Qwen3.5-35B-A3B") == shape
    Estimator(shape=replace(shape, name="ours"), table=table_of(shape, SIZES))


def test_each_group_is_priced_at_the_entry_for_its_own_rows(shape):
    estimator = Estimator(shape=shape, table=table_of(shape, SIZES))
    large = Group(attention_rows=(11000, 9000), longest_packed_tokens=20000)
    small = Group(attention_rows=(9900, 9900), longest_packed_tokens=20000)
    wave = Wave(model=shape.name, topology=Topology(ep=2, cp=2), groups=(large, small))
    # 9,900 rows a rank at 1.8 route more than 10,000 at 1.6, by more than the mixer of 11,000 rows costs more
    estimate = estimator.price(wave)
    assert estimate.allowance.batch_tokens == 2000
    routed = next(term for term in estimate.terms if term.name == "routed_stage")
    assert (routed.rows, routed.bytes_per_row) == (9900, Decimal(155648) * Decimal("1.8"))
    assert estimator.price(replace(wave, groups=(large,))).allowance.batch_tokens == 20000


def test_a_layers_own_entry_is_used_where_it_has_one(shape):
    table = table_of(shape, {(2, 2000): "1.4", (2, 2000, 39): "1.2"})
    wave = Wave(
        model=shape.name, topology=Topology(ep=2, cp=2), groups=(Group(attention_rows=(5000, 5000), longest_packed_tokens=10000),)
    )
    estimate = Estimator(shape=shape, table=table).price(wave, per_layer=True)
    # layer 39 at 1.2 has 10,000 x 155,648 x 0.2 bytes less than the other layers; layer 38, at 1.4, has one boundary less
    assert (estimate.binding_layer, estimate.allowance.layer, estimate.allowance.value) == (38, "all", Decimal("1.4"))
    floor = Estimator(shape=shape, table=table).price(wave)
    assert (floor.binding_layer, floor.total_bytes) == (39, floor.floor_bytes)


def test_what_is_not_priced_by_rank_or_was_never_measured_is_said(shape, estimator, flat_wave):
    table = table_of(shape, {(4, 2000): "1.6"})
    coarse = Wave(
        model=shape.name,
        topology=Topology(ep=4, cp=4),
        groups=(Group(attention_rows=(100, 900, 500, 500), gdn_rows=(500, 500, 500, 500), longest_packed_tokens=2000),),
    )
    estimate = Estimator(shape=shape, table=table).price(coarse)
    assert {"unmeasured_ep", "coarse_floor", "router_extrapolated"} == {one.code for one in estimate.cautions}
    assert "no published memory run at this EP" in estimate.explain()
    terms = {term.name: term for term in estimate.terms}
    assert (estimate.binding_rank, terms["mixer"].rows, terms["mixer"].bytes_per_row) == (1, 900, 95232)
    assert terms["boundaries"].rows == 900
    assert (terms["routed_stage"].rows, estimate.binding_layer) == (500, 39)
    assert {one.code for one in estimator.price(flat_wave).cautions} == {"above_fitted_batch"}


def test_an_unmirrored_head_dim_is_said():
    from routing.core.wave import Stage

    shape = find_shape("qwen3-30b-a3b")
    stages = tuple((Stage(kind="local", q=100, k=100, q_len=100, k_len=100),) for _ in range(2))
    group = Group(attention_rows=(100, 100), attention_stages=stages, longest_packed_tokens=200)
    wave = Wave(model=shape.name, topology=Topology(ep=1, cp=2), groups=(group,))
    assert "flash_block_extrapolated" in {one.code for one in Estimator(shape=shape).price(wave).cautions}
