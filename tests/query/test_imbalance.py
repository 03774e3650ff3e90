"""Imbalance is the busiest rank over the even share, of the worst layer; what other tools got wrong, with the right answer."""

import pytest

from routing.core.errors import CheckFailedError, DamagedDataError, InputError
from routing.query.batches import cut_batches
from routing.query.imbalance import fill_imbalances, imbalance_rows, read_steps
from routing.query.runner import ask
from routing.query.tables import opened_tables
from tests.stores import measured_run, write_tiny_run


def _one_segment(folder, layers, *, num_tokens, top_k=1, **more):
    """A run of one trajectory of one segment; `layers` are the routed rows of each expert, a list a layer."""
    loads = {(0, layer): rows for layer, rows in enumerate(layers)}
    sizes = {"num_experts": len(layers[0]), "top_k": top_k, "layers": range(len(layers))}
    return write_tiny_run(folder, paths=[[0]], segment_tokens=[num_tokens], loads=loads, **sizes, **more)


def _row(run, ep, batch_tokens, **asked):
    rows, _ = imbalance_rows(run, eps=[ep], batch_sizes=[batch_tokens], **asked)
    return rows[0]


def test_a_row_has_these_keys_in_this_order(tmp_path):
    run = _one_segment(tmp_path / "retail", [[1, 3]], num_tokens=4, label="base")
    assert _row(run, 2, 4) == {
        "run": "retail",
        "label": "base",
        "ep": 2,
        "batch_tokens": 4,
        "view": "packed",
        "num_batches": 1,
        "num_tokens": 4,
        "worst_imbalance": 1.5,
        "worst_layer": 0,
        "worst_batch": 0,
        "worst_rank": 1,
        "mean_over_layers": 1.5,
        "pooled_over_layers": 1.5,
    }
    assert list(_row(run, 2, 4)) == [
        *("run", "label", "ep", "batch_tokens", "view", "num_batches", "num_tokens"),
        *("worst_imbalance", "worst_layer", "worst_batch", "worst_rank", "mean_over_layers", "pooled_over_layers"),
    ]
    assert set(_row(run, 2, 4, by_layer=True)) - set(_row(run, 2, 4)) == {"layer"}


@pytest.mark.fault(
    "an imbalance reduced over the wrong axis (vLLM 36304, 51784)",
    how="loads of 100 and 200 rows in both of two layers",
    tries=1,
    outcome="4/3, where a reduction over layers gave 1.0",
)
def test_busiest_rank_is_compared_with_the_even_share(tmp_path):
    """vLLM 36304, 51784: reduced over layers instead of ranks, these loads gave 1.0. 200 x 2 / 300 = 4/3 in both layers."""
    run = _one_segment(tmp_path / "run", [[100, 200], [100, 200]], num_tokens=300)
    row = _row(run, 2, 300)
    assert (row["worst_imbalance"], row["worst_layer"], row["worst_rank"]) == (400 / 300, 0, 1)


@pytest.mark.fault(
    "layers pooled before the busiest rank is taken (QwenLM/Qwen3 1418)",
    how="layer 0 all on rank 0, layer 1 all on rank 1",
    tries=1,
    outcome="worst 2.0 at EP 2, the pooled 1.0 beside it",
)
def test_pooling_the_layers_hides_what_the_worst_layer_shows(tmp_path):
    """QwenLM/Qwen3 1418: layer 0 all on rank 0, layer 1 all on rank 1. Pooled both ranks have 100 of 200 rows, 1.0."""
    run = _one_segment(tmp_path / "run", [[100, 0], [0, 100]], num_tokens=100)
    row = _row(run, 2, 100)
    assert (row["worst_imbalance"], row["mean_over_layers"], row["pooled_over_layers"]) == (2.0, 2.0, 1.0)
    assert (row["worst_layer"], row["worst_rank"]) == (0, 0)


def test_the_mean_over_layers_divides_sums(tmp_path):
    # Busiest 60 and 90 of 100 rows each: 2 x 150 / 200 = 1.5; pooled ranks 70 and 130: 2 x 130 / 200 = 1.3.
    run = _one_segment(tmp_path / "run", [[60, 40], [10, 90]], num_tokens=100)
    row = _row(run, 2, 100)
    assert (row["worst_imbalance"], row["worst_layer"], row["mean_over_layers"], row["pooled_over_layers"]) == (1.8, 1, 1.5, 1.3)


def test_a_rank_owns_neighbouring_experts(tmp_path):
    # Experts 0..3 get 4, 0, 2, 2 rows: EP 2 is (4, 4), EP 4 is 4 x 4 / 8.
    run = _one_segment(tmp_path / "run", [[4, 0, 2, 2]], num_tokens=8)
    assert _row(run, 2, 8)["worst_imbalance"] == 1.0
    assert _row(run, 4, 8)["worst_imbalance"] == 2.0


def test_ties_go_to_the_smallest_batch_then_layer_then_rank(tmp_path):
    # Two batches of one segment, two layers, each (3, 1) or (1, 3): 1.5 everywhere.
    loads = {(0, 2): [1, 3], (0, 5): [3, 1], (1, 2): [3, 1], (1, 5): [1, 3]}
    run = write_tiny_run(
        tmp_path / "run", paths=[[0, 1]], segment_tokens=[4, 4], loads=loads, num_experts=2, top_k=1, layers=[2, 5]
    )
    row = _row(run, 2, 4)
    assert (row["worst_batch"], row["worst_layer"], row["worst_rank"], row["worst_imbalance"]) == (0, 2, 1, 1.5)


@pytest.mark.fault(
    "unequal numbers of tokens in one batch (DeepEP 604)",
    how="segments of 30 and 10 tokens, each on a rank of its own",
    tries=1,
    outcome="1.5: the mean is over the whole batch, not over each sender",
)
def test_unequal_tokens_use_the_mean_of_the_whole_batch(tmp_path):
    """DeepEP 604, megablocks 113: 30 rows against 10 over two segments of 30 and 10 tokens: 30 x 2 / 40 = 1.5."""
    loads = {(0, 0): [30, 0], (1, 0): [0, 10]}
    run = write_tiny_run(tmp_path / "run", paths=[[0], [1]], segment_tokens=[30, 10], loads=loads, num_experts=2, top_k=1)
    assert _row(run, 2, 40)["worst_imbalance"] == 1.5


def test_a_packed_batch_is_not_the_logical_one(tmp_path):
    # The prompt (50, 0) is shared by the tails (0, 50) and (0, 50).
    loads = {(0, 0): [50, 0], (1, 0): [0, 50], (2, 0): [0, 50]}
    run = write_tiny_run(tmp_path / "run", paths=[[0, 1], [0, 2]], segment_tokens=[50] * 3, loads=loads, num_experts=2, top_k=1)
    packed = _row(run, 2, 150)
    assert (packed["num_tokens"], packed["worst_imbalance"]) == (150, 200 / 150)
    logical = _row(run, 2, 200, view="logical")
    assert (logical["num_tokens"], logical["worst_imbalance"]) == (200, 1.0)


@pytest.mark.fault(
    "a segment counted twice alike (Automodel 3247, torchtitan 1593; a resumed part)",
    how="a second part that holds one of two segments again",
    tries=1,
    outcome="dropped with a notice, the same imbalance and content hash",
)
def test_a_segment_counted_twice_the_same_changes_nothing(tmp_path):
    """Automodel 3247, torchtitan 1593: recompute hooks ran twice. Here a resumed part repeats a segment."""
    loads = {(0, 0): [3, 1], (1, 0): [1, 1]}
    tree = {"paths": [[0, 1]], "segment_tokens": [4, 2], "num_experts": 2, "top_k": 1}
    once = write_tiny_run(tmp_path / "once", loads=[loads], **tree)
    twice = write_tiny_run(tmp_path / "twice", loads=[loads, {(0, 0): [3, 1]}], **tree)
    rows, cautions = imbalance_rows(twice, eps=[2], batch_sizes=[6])
    assert rows[0] | {"run": "once"} == _row(once, 2, 6)
    assert [caution.code for caution in cautions] == ["repeated_loads", "one_batch"]
    assert "2 rows" in cautions[0].message
    assert once.manifest.content_hash == twice.manifest.content_hash


@pytest.mark.fault(
    "a segment counted twice with other rows",
    how="two parts that hold one segment, (3, 1) and (2, 2) rows",
    tries=1,
    outcome="exit 3, segment and layer named",
)
def test_a_segment_counted_twice_differently_is_damage(tmp_path):
    parts = [{(0, 0): [3, 1]}, {(0, 0): [2, 2]}]
    run = write_tiny_run(
        tmp_path / "run", paths=[[0]], segment_tokens=[4], loads=parts, num_experts=2, top_k=1, content_hash_text="0" * 64
    )
    with pytest.raises(DamagedDataError, match=r"loads_counted_once.*segment_id=0 layer=0"):
        imbalance_rows(run, eps=[2], batch_sizes=[4])


@pytest.mark.fault(
    "a layer without a row",
    how="a part with zeros for one of two layers",
    tries=1,
    outcome="exit 1; where it is asked all the same, null and never 0 or NaN",
)
def test_a_layer_without_rows_is_null_not_zero(tmp_path):
    # vLLM 22167, 56716: an all-zero batch gave NaN. Checks refuse such a run; the query says null where it is undefined.
    run = _one_segment(tmp_path / "run", [[0, 0], [3, 1]], num_tokens=4)
    with pytest.raises(CheckFailedError, match=r"rows_conserved.*segment_id=0 layer=0"):
        imbalance_rows(run, eps=[2], batch_sizes=[4])
    with opened_tables(run, block_experts=1) as (con, _):
        fill_imbalances(con, [cut_batches(read_steps(con, "corpus"), batch_tokens=4, view="packed")], eps=[2])
        assert [row["imbalance"] for row in ask(con, "sql/layer_imbalances.sql") if row["layer"] == 0] == [None]
        (answer,) = ask(con, "sql/imbalance.sql")
        assert (answer["worst_layer"], answer["worst_imbalance"], answer["mean_over_layers"]) == (1, 1.5, 1.5)
        assert [row["layer"] for row in ask(con, "sql/imbalance_by_layer.sql")] == [1]


def test_a_batch_without_any_row_has_no_imbalance(tmp_path):
    run = _one_segment(tmp_path / "run", [[0, 0]], num_tokens=4)
    with opened_tables(run, block_experts=1) as (con, _):
        fill_imbalances(con, [cut_batches(read_steps(con, "corpus"), batch_tokens=4, view="packed")], eps=[2])
        (batch,) = ask(con, "sql/batch_imbalances.sql")
        ratios = ("worst_imbalance", "worst_layer", "worst_rank", "mean_over_layers", "pooled_over_layers")
        assert [batch[name] for name in ratios] == [None] * 5
        assert ask(con, "sql/imbalance.sql") == []


@pytest.mark.fault(
    "a batch larger than the data",
    how="4 tokens asked for in batches of 5",
    tries=1,
    outcome="null with a warning; exit 2 where no size has a full batch",
)
def test_a_size_without_a_full_batch_is_null_with_a_warning(tmp_path):
    run = _one_segment(tmp_path / "run", [[1, 3]], num_tokens=4)
    rows, cautions = imbalance_rows(run, eps=[2], batch_sizes=[5, 4])
    empty = {name: value for name, value in rows[0].items() if name not in ("run", "label", "view")}
    assert empty == {"ep": 2, "batch_tokens": 5, "num_batches": 0, "num_tokens": 0} | dict.fromkeys(
        ("worst_imbalance", "worst_layer", "worst_batch", "worst_rank", "mean_over_layers", "pooled_over_layers")
    )
    assert [caution.code for caution in cautions] == ["no_full_batch", "one_batch"]
    assert "holds 4 tokens" in cautions[0].message


@pytest.mark.fault("a partial last batch", how="12 tokens in batches of 8", tries=1, outcome="dropped, its tokens told")
def test_the_dropped_last_batch_is_told(tmp_path):
    loads = {(segment, 0): [2, 2] for segment in range(3)}
    run = write_tiny_run(tmp_path / "run", paths=[[0, 1, 2]], segment_tokens=[4] * 3, loads=loads, num_experts=2, top_k=1)
    rows, cautions = imbalance_rows(run, eps=[2], batch_sizes=[8])
    assert (rows[0]["num_batches"], rows[0]["num_tokens"]) == (1, 8)
    assert [caution.code for caution in cautions] == ["partial_batch_dropped", "one_batch"]
    assert "last 4 tokens" in cautions[0].message


@pytest.mark.parametrize("ep", [0, 1, 3, -2, 8])
def test_an_ep_size_that_does_not_divide_the_experts_is_refused(tmp_path, ep):
    run = _one_segment(tmp_path / "run", [[1, 1, 1, 1]], num_tokens=4)
    with pytest.raises(InputError, match="valid sizes: 2, 4"):
        imbalance_rows(run, eps=[2, ep], batch_sizes=[4])


@pytest.mark.fault(
    "an imbalance asked of an unfinished run",
    how="a run with one of two parts",
    tries=1,
    outcome="exit 2 with the parts that are in",
)
def test_an_unfinished_run_gives_no_imbalance(tmp_path):
    run = _one_segment(tmp_path / "run", [[1, 3]], num_tokens=4, is_finished=False, planned_load_parts=2)
    with pytest.raises(InputError, match="unfinished, 1 of 2 parts"):
        imbalance_rows(run, eps=[2], batch_sizes=[4])


def test_the_fit_gets_units_of_full_batches_and_the_experts_of_the_worst_rank(tmp_path):
    # Batches of 8 tokens: segments 0 and 1 of trajectory 0, then 2 and 3 of trajectories 1 and 2; the last is dropped.
    loads = {(segment, 0): [1, 0, 5, 2] for segment in range(5)} | {(1, 0): [0, 0, 7, 1]}
    run = write_tiny_run(
        tmp_path / "run",
        paths=[[0, 1], [2], [3], [4]],
        segment_tokens=[4] * 5,
        loads=loads,
        num_experts=4,
        top_k=2,
        units=["a", "b", "b", "c"],
    )
    with pytest.raises(CheckFailedError, match=r"loads_within_tokens.*segment_id=0 layer=0"):
        measured_run(run, eps=[2], batch_sizes=[8])
    loads = {(segment, 0): [2, 1, 3, 2] for segment in range(5)} | {(1, 0): [0, 0, 4, 4]}
    sizes = {"segment_tokens": [4] * 5, "num_experts": 4, "top_k": 2, "units": ["a", "b", "b", "c"]}
    run = write_tiny_run(tmp_path / "sound", paths=[[0, 1], [2], [3], [4]], loads=loads, **sizes)
    (observed,) = measured_run(run, eps=[2], batch_sizes=[8]).observed
    assert observed.units == {"a", "b"}
    assert (observed.num_tokens, observed.dropped_tokens) == (16, 4)
    # Batch 0: rank 1 has 5 + 8 of 16 rows. Batch 1: 5 + 5 of 16.
    assert [(one.batch, one.layer, one.rank, one.busiest_rows, one.routed_rows) for one in observed.worsts] == [
        (0, 0, 1, 13, 16),
        (1, 0, 1, 10, 16),
    ]
    assert [(one.expert, one.routed_rows) for one in observed.top_experts] == [(2, 7), (3, 6)]
