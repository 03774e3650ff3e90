"""The guard reports what is above an allowance and nothing else, and never stops a trainer.

2 MoE layers of 3 (1 and 2), 8 experts, top-2; EP 4, so that a rank owns two experts. Simulated tables.
"""

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch

from routing import AllowanceGuard, InputError
from routing.core.allowance import AllowanceTable
from routing.core.layers import DecoderShape
from routing.core.placement import LayerPlacement, Placement, PlacementFile
from routing.store.guard_log import read_exceedances
from tests.estimate.tables import table_of

EVEN = [100] * 8
# 800 rows, 400 tokens. Rank 0 has 300 of them: 300 x 4 / 800 = 1.5, the allowance itself.
AT_THE_ALLOWANCE = [200, 100, 100, 100, 100, 100, 50, 50]
# One row more on rank 0: 301 x 4 / 800 = 1.505.
ABOVE = [201, 100, 100, 100, 100, 100, 50, 49]

SHAPE = DecoderShape(
    name="tiny-guarded",
    mixers=("attention",) * 3,
    moe_layers=(1, 2),
    hidden_size=8,
    num_query_heads=1,
    num_kv_heads=1,
    head_dim=8,
    output_gate=False,
    gdn=None,
    num_experts=8,
    top_k=2,
    expert_ffn_size=8,
    shared_ffn_size=0,
    shared_gated=False,
    dense_ffn_size=8,
    vocab_size=16,
)


def table(**changes: object) -> AllowanceTable:
    """1.5 at EP 4 from 100 tokens, 1.2 from 1,000; layer 2 has 1.1 of its own at 100."""
    return replace(table_of(SHAPE, {(4, 100): "1.5", (4, 1000): "1.2", (4, 100, 2): "1.1"}), **changes)


KINDS = {
    "list": list,
    "numpy": np.array,
    "torch": torch.tensor,
    "torch float32": lambda rows: torch.tensor(rows, dtype=torch.float32),
    "torch by rank": lambda rows: torch.tensor([rows[place] + rows[place + 1] for place in range(0, 8, 2)]),
    "list by rank": lambda rows: [rows[place] + rows[place + 1] for place in range(0, 8, 2)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_planted_excess_is_reported_and_nothing_else(kind, tmp_path):
    made = KINDS[kind]
    guard = AllowanceGuard(table(), ep=4, log=tmp_path / "guard.jsonl")
    reported = []
    for step in range(20):
        for layer in (1, 2):
            guard.see(layer, made(ABOVE if (step, layer) == (7, 2) else AT_THE_ALLOWANCE))
        reported += guard.end_step(step)
    (one,) = reported
    assert (one.event, one.step, one.layer, one.rank, one.ep) == ("exceeded", 7, 2, 0, 4)
    assert (one.busiest_rows, one.routed_rows, one.batch_tokens) == (301, 800, 400)
    assert (one.imbalance, one.allowance, one.allowance_batch_tokens) == (Decimal("1.505"), Decimal("1.5"), 100)
    assert read_exceedances(tmp_path / "guard.jsonl") == (one,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_at_the_allowance_reports_nothing(kind, tmp_path, caplog):
    guard = AllowanceGuard(table(), ep=4, log=tmp_path / "guard.jsonl")
    for step in range(5):
        guard.see(1, KINDS[kind](AT_THE_ALLOWANCE))
        assert guard.end_step(step) == ()
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []


def test_an_exceeded_allowance_is_reported_once_a_layer_and_logged_again_where_a_refit_needs_more(tmp_path, caplog):
    guard = AllowanceGuard(table(), ep=4, log=tmp_path / "guard.jsonl")
    much = [300, 100, 100, 100, 50, 50, 50, 50]  # 400 x 4 / 800 = 2.0
    counts = []
    for step, rows in enumerate((ABOVE, ABOVE, much, much, ABOVE)):
        guard.see(1, rows)
        guard.see(2, rows)
        counts.append(len(guard.end_step(step)))
    assert counts == [2, 0, 0, 0, 0]
    logged = read_exceedances(tmp_path / "guard.jsonl")
    assert [(one.event, one.step, one.layer) for one in logged] == [
        ("exceeded", 0, 1),
        ("exceeded", 0, 2),
        ("larger", 2, 1),
        ("larger", 2, 2),
    ]
    assert len(caplog.records) == 2


def test_a_dispatch_is_held_against_the_entry_of_its_own_tokens():
    guard = AllowanceGuard(table(), ep=4)
    guard.see(1, [rows * 3 for rows in EVEN])  # 1,200 tokens, even
    assert guard.end_step(0) == ()
    guard.see(1, [rows * 3 for rows in AT_THE_ALLOWANCE])  # 1,200 tokens at 1.5, where 1.2 is allowed
    (one,) = guard.end_step(1)
    assert (one.batch_tokens, one.allowance, one.allowance_batch_tokens) == (1200, Decimal("1.2"), 1000)
    guard.see(1, [20, 0, 0, 0, 0, 0, 0, 0])  # 10 tokens, below every batch size: the smallest entry, 1.5
    (one,) = guard.end_step(2)
    assert (one.batch_tokens, one.allowance_batch_tokens) == (10, 100)


def test_a_layers_own_allowance_counts_where_the_trainer_plans_by_layer():
    for per_layer, num in ((False, 0), (True, 1)):
        guard = AllowanceGuard(table(), ep=4, per_layer=per_layer)
        guard.see(2, AT_THE_ALLOWANCE)
        assert len(guard.end_step(0)) == num


def test_micro_batches_are_judged_apart_and_a_recomputed_layer_changes_nothing():
    guard = AllowanceGuard(table(), ep=4)
    mirrored = AT_THE_ALLOWANCE[::-1]
    for rows in (AT_THE_ALLOWANCE, mirrored, mirrored, AT_THE_ALLOWANCE):
        guard.see(1, rows)
    assert guard.end_step(0) == ()
    assert guard.observed().share_by_layer == (None, Decimal("1.5"), None)


def test_what_the_caller_overwrites_after_seeing_is_not_seen():
    guard = AllowanceGuard(table(), ep=4)
    for rows in (torch.tensor(AT_THE_ALLOWANCE), np.array(AT_THE_ALLOWANCE), list(AT_THE_ALLOWANCE)):
        guard.see(1, rows)
        rows[0] = 10_000
    assert guard.end_step(0) == ()


class _CountedReads:
    """Counts how often a tensor is brought to the host."""

    def __init__(self, monkeypatch):
        self.num = 0
        for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"):
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, method):
        def call(*arguments, **named):
            self.num += 1
            return method(*arguments, **named)

        return call


def test_tensors_are_read_back_once_a_step_whatever_the_number_of_layers(monkeypatch):
    guard = AllowanceGuard(table(), ep=4)
    rows = torch.tensor(EVEN)
    reads = _CountedReads(monkeypatch)
    for step in range(3):
        for _ in range(100):  # more than the buffer begins with
            guard.see(1, rows)
        assert reads.num == step
        guard.end_step(step)
        assert reads.num == step + 1


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/full")])
def test_an_unwritable_log_stops_no_trainer_and_its_lines_are_written_when_it_can_be(make, tmp_path, caplog):
    log = tmp_path / "guard.jsonl"
    make(log)
    guard = AllowanceGuard(table(), ep=4, log=log)
    for step in range(3):
        guard.see(1, ABOVE)
        assert len(guard.end_step(step)) == (step == 0)
    assert sum("not written" in record.getMessage() for record in caplog.records) == 1
    log.rmdir() if log.is_dir() and not log.is_symlink() else log.unlink()
    guard.end_step(3)
    assert [one.layer for one in read_exceedances(log)] == [1]


def test_a_line_that_a_killed_trainer_left_torn_is_not_continued(tmp_path):
    log = tmp_path / "guard.jsonl"
    log.write_text('{"event": "exc')
    guard = AllowanceGuard(table(), ep=4, log=log)
    guard.see(1, ABOVE)
    guard.end_step(0)
    torn, whole = log.read_text().splitlines()
    assert json.loads(whole)["layer"] == 1
    with pytest.raises(InputError, match=r"guard.jsonl:1"):
        read_exceedances(log)
    assert torn == '{"event": "exc'


def test_a_dispatch_without_rows_is_no_imbalance():
    guard = AllowanceGuard(table(), ep=4)
    guard.see(1, [0] * 8)
    assert guard.end_step(0) == ()
    assert guard.observed() is None


def test_rows_that_are_no_whole_tokens_are_said_once(caplog):
    guard = AllowanceGuard(table(), ep=4)
    for step in range(3):
        guard.see(1, [*EVEN[:-1], 101])
        guard.end_step(step)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "801 rows are no whole tokens of top-2" in caplog.text


@pytest.mark.parametrize(
    ("layer", "rows", "said"),
    [
        (0, EVEN, "layer 0 is no MoE layer of tiny-guarded"),
        (1, EVEN[:-1], "not of 8 experts or 4 ranks"),
        (1, torch.ones(8, 3), "not of 8 experts or 4 ranks"),
        (1, [-1, *EVEN[1:]], "is no number of rows"),
        (1, [0.5, *EVEN[1:]], "'0.5' is no number of rows"),
        (1, [float("nan")] * 8, "'nan' is no number of rows"),
        (1, torch.tensor([float("inf")] * 8), "'inf' is no number of rows"),
        (1, torch.tensor(EVEN, dtype=torch.bfloat16), "rows of torch.bfloat16 are not exact"),
        (1, np.array(EVEN, dtype=np.float16), "rows of float16 are not exact"),
        (1, [10**30, *EVEN[1:]], "layer 1: '10{30}' is no number of rows"),
        (1, [10**15, *EVEN[1:]], "layer 1: more than 1,000,000,000,000,000 rows"),
        (1, np.array([2**64 - 1, *EVEN[1:]], dtype=np.uint64), "layer 1: '18446744073709551615' is no number of rows"),
        (1, torch.tensor([2**62] * 8), "layer 1: '4611686018427387904' is no number of rows"),
        (1, np.array(["1"] * 8), "layer 1: '1' is no number of rows"),
        (1, np.ma.array(EVEN, mask=[True] + [False] * 7), "layer 1: 'None' is no number of rows"),
        (1, torch.tensor(EVEN).to_sparse(), "rows of torch.int64, torch.sparse_coo on cpu: hand in a dense tensor"),
        (1, torch.empty(8, device="meta"), "rows of torch.float32, torch.strided on meta: hand in a dense tensor"),
    ],
)
def test_what_is_no_count_is_refused_with_its_layer(layer, rows, said):
    guard = AllowanceGuard(table(), ep=4)

    def one_step():
        guard.see(layer, rows)
        guard.end_step(0)

    with pytest.raises(InputError, match=said):
        one_step()


@pytest.mark.fault(
    "counts by expert that are negative or broken, hidden by the sum of a rank",
    how="-1 beside 201, and two halves, on one rank, in tensors and arrays, under all three placements",
    tries=27,
    outcome="the layer and the count are named, as of a list",
)
@pytest.mark.parametrize("kind", ["contiguous", "round-robin", "file"])
@pytest.mark.parametrize(
    ("made", "types"), [(np.array, (np.int64, np.int32, np.float64, np.float32)), (torch.tensor, (torch.int64, torch.float32))]
)
def test_a_count_that_is_none_is_refused_where_its_ranks_sum_is_one(made, types, kind):
    file = PlacementFile(ep=4, layers=tuple(LayerPlacement(layer=layer, ranks=(0, 0, 1, 1, 2, 2, 3, 3)) for layer in (1, 2)))
    placement = Placement(kind=kind, file=file if kind == "file" else None)
    # Experts 0 and 1, and 0 and 4, share a rank under one of the placements.
    negative, halves = [-1, 201, 100, 100, 201, 100, 100, 100], [0.5, 0.5, 100, 100, 0.5, 100.5, 100, 100]
    for dtype in types:
        for rows, said in ((negative, "-1"), (halves, "0.5")):
            if said == "0.5" and "int" in str(dtype):
                continue
            guard = AllowanceGuard(table(placement=placement.name), ep=4, placement=placement)

            def one_step(guard=guard, rows=rows, dtype=dtype):
                guard.see(1, torch.tensor(EVEN))
                guard.see(2, made(rows, dtype=dtype))
                guard.end_step(0)

            with pytest.raises(InputError, match=rf"layer 2: '{said}(\.0)?' is no number of rows"):
                one_step()


NO_COUNTS = [-1, *EVEN[1:]]


@pytest.mark.fault(
    "rows that are no counts reach the training guard",
    how="a layer of -1000 rows between two good ones, as a list, an array and a tensor, seven steps after it",
    tries=3,
    outcome="the step is refused once, the next ones are judged in their own layers",
)
@pytest.mark.parametrize("made", [list, np.array, torch.tensor])
def test_rows_that_are_refused_cost_their_own_step_and_no_later_one(made):
    guard = AllowanceGuard(table(), ep=4)

    def one_bad_step():
        for rows in (EVEN, NO_COUNTS, EVEN):
            guard.see(1, made(rows))
        guard.end_step(0)

    with pytest.raises(InputError, match="is no number of rows"):
        one_bad_step()
    for step in range(1, 7):
        guard.see(1, torch.tensor(EVEN))
        guard.see(1, EVEN)
        assert guard.end_step(step) == ()
    guard.see(2, torch.tensor(ABOVE))
    (one,) = guard.end_step(7)
    assert (one.step, one.layer, one.busiest_rows) == (7, 2, 301)


@pytest.mark.parametrize("made", [list, np.array])
def test_a_trainer_that_goes_on_after_refused_rows_is_told_of_the_others(made):
    guard = AllowanceGuard(table(), ep=4)
    guard.see(1, torch.tensor(EVEN))
    with pytest.raises(InputError, match="is no number of rows"):
        guard.see(1, made(NO_COUNTS))
    guard.see(2, made(ABOVE))
    (one,) = guard.end_step(0)
    assert (one.layer, one.busiest_rows) == (2, 301)


@pytest.mark.parametrize("step", [None, "a", -1, 1.5, True, 10**30])
def test_a_step_that_is_none_is_refused_at_once_and_the_excess_is_kept_for_the_next(step):
    guard = AllowanceGuard(table(), ep=4)
    with pytest.raises(InputError, match="step: "):
        guard.end_step(step)
    guard.see(1, ABOVE)
    with pytest.raises(InputError, match="step: "):
        guard.end_step(step)
    (one,) = guard.end_step(5)
    assert (one.step, one.layer) == (5, 1)


@pytest.mark.parametrize("layer", [None, "1", 1.0, True, [1]])
def test_a_layer_that_is_no_whole_number_is_refused_when_it_is_seen(layer):
    guard = AllowanceGuard(table(), ep=4)
    with pytest.raises(InputError, match="layer: "):
        guard.see(layer, ABOVE)
    assert guard.end_step(0) == ()
    guard.see(np.int64(1), ABOVE)
    assert [one.layer for one in guard.end_step(np.int64(1))] == [1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ep": "4"}, "ep: '4' is not a whole number"),
        ({"ep": 4.0}, "ep: '4.0' is not a whole number"),
        ({"ep": True}, "ep: 'True' is not a whole number"),
        ({"ep": 0}, "ep: 0 is refused, no group has so few ranks"),
        ({"placement": None}, "placement 'None' is none"),
        ({"placement": "contiguous"}, "placement 'contiguous' is none; load"),
        ({"log": "\0"}, "is no path; hand in the file to append to"),
        ({"log": 3}, "log '3' is no path"),
    ],
)
def test_what_a_guard_cannot_be_made_of_is_refused_in_one_sentence(changes, said):
    with pytest.raises(InputError, match=said):
        AllowanceGuard(table(), **{"ep": 4, **changes})


def test_a_guard_is_loaded_with_a_placement_by_name_or_file_alone():
    with pytest.raises(InputError, match="placement 'None' is none; contiguous, round-robin or a file"):
        AllowanceGuard.load(ep=8, placement=None)


def test_a_sentence_rounds_the_imbalance_up_and_the_log_keeps_it(tmp_path):
    guard = AllowanceGuard(table(), ep=4, log=tmp_path / "guard.jsonl")
    guard.see(1, [127, 30, 30, 30])  # 127 x 4 / 217 = 2.341013...
    guard.see(2, [375_001, 208_333, 208_333, 208_333])  # 1,500,004 / 1,000,000 at 500k tokens, where 1.2 is allowed
    assert [one.sentence().partition(" at EP")[0] for one in guard.end_step(0)] == [
        "layer 1 at step 0: imbalance 2.3411",
        "layer 2 at step 0: imbalance 1.5001",
    ]
    assert [float(one.imbalance) for one in read_exceedances(tmp_path / "guard.jsonl")] == [508 / 217, 1.500004]


def test_threads_that_share_a_guard_lose_no_report_and_double_none(tmp_path):
    guard = AllowanceGuard(table(), ep=4, log=tmp_path / "guard.jsonl")

    def run(thread):
        found = []
        for step in range(100):
            guard.see(1 + thread % 2, torch.tensor(ABOVE))
            found += guard.end_step(step)
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = [one.layer for some in threads.map(run, range(8)) for one in some]
    finally:
        sys.setswitchinterval(before)
    assert sorted(found) == [1, 2]
    assert sorted(one.layer for one in read_exceedances(tmp_path / "guard.jsonl")) == [1, 2]


def test_an_ep_size_without_an_entry_is_refused_with_those_that_have_one():
    with pytest.raises(InputError, match=r"no allowance for ep=8 \(has 4\); measure it: routing fit RUN --ep 4,8"):
        AllowanceGuard(table(), ep=8)


@pytest.mark.parametrize(
    ("ep", "why"),
    [(0, "no group has so few ranks"), (-8, "no group has so few ranks"), (1, "imbalance at EP 1 is exactly 1.0")],
)
def test_an_ep_size_that_can_not_be_fitted_is_refused_without_proposing_it(ep, why):
    with pytest.raises(InputError, match=f"^allowances: ep: {ep} is refused, {why}; valid sizes: 2, 4, 8, "):
        AllowanceGuard.load(ep=ep)


def test_experts_are_gathered_by_the_placement_of_the_table():
    rows = [100, 0, 0, 0, 100, 0, 0, 0]  # 4 ranks: blocks {0, 1} and {4, 5} have 100 each, round-robin rank 0 has both
    busiest = {"contiguous": 2.0, "round-robin": 4.0, "file": 2.0}
    file = PlacementFile(ep=4, layers=tuple(LayerPlacement(layer=layer, ranks=(0, 1, 2, 3, 1, 0, 2, 3)) for layer in (1, 2)))
    for kind, imbalance in busiest.items():
        placement = Placement(kind=kind, file=file if kind == "file" else None)
        for rows_of in (rows, torch.tensor(rows)):
            guard = AllowanceGuard(table(placement=placement.name), ep=4, placement=placement)
            guard.see(1, rows_of)
            (one,) = guard.end_step(0)
            assert (float(one.imbalance), one.placement) == (imbalance, placement.name)
    with pytest.raises(InputError, match="the table is of placement round-robin, the guard of contiguous"):
        AllowanceGuard(table(placement="round-robin"), ep=4)
