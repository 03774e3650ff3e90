"""A guard's log is a floor of the next fit: at the batch size that the lookup gives, in its layer and in all layers.

8 experts, top-2, MoE layers 0 and 1, 40 segments of 10 tokens that route evenly but for one row, so that allowances stay at 1.x.
"""

from dataclasses import replace
from decimal import Decimal

import pytest

from routing.core.errors import InputError
from routing.core.exceedance import Exceedance
from routing.stages.fit import fit
from routing.store.allowances import read_table
from routing.store.guard_log import append_lines, exceedance_line
from tests.stores import write_tiny_run

NEARLY_EVEN = [3, 2, 3, 2, 3, 2, 3, 2]  # 20 rows, 10 tokens: 5 a rank at EP 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    loads = {(segment, layer): NEARLY_EVEN for segment in range(40) for layer in (0, 1)}
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    paths = [[segment] for segment in range(40)]
    return write_tiny_run(folder, paths=paths, segment_tokens=[10] * 40, loads=loads, num_experts=8, top_k=2, layers=(0, 1))


def seen(run, **changes) -> Exceedance:
    """230 of 400 rows on rank 1 of 4, 200 tokens: 2.3."""
    one = Exceedance(
        event="exceeded",
        step=12,
        layer=1,
        rank=1,
        ep=4,
        batch_tokens=200,
        busiest_rows=230,
        routed_rows=400,
        imbalance=Decimal("2.3"),
        allowance=Decimal("1.2"),
        allowance_batch_tokens=150,
        allowance_layer="all",
        placement="contiguous",
        shape_hash=run.manifest.shape.shape_hash,
        table_hash="0" * 64,
        time="2026-01-01T00:00:00Z",
    )
    return replace(one, **changes)


def fitted(run, tmp_path, *logged: Exceedance):
    log, out = tmp_path / "guard.jsonl", tmp_path / "table.yaml"
    append_lines(log, [exceedance_line(one) for one in logged])
    fit([run.folder], out=out, eps=(2, 4), batch_sizes=(150, 50), order="corpus", by_layer=True, floor_logs=[log])
    table = read_table(out)
    return {(one.ep, one.batch_tokens, one.layer): one for one in table.entries}


def test_what_a_guard_saw_is_a_floor_of_its_layer_and_of_all_layers_at_its_batch_size(run, tmp_path):
    # 200 tokens are looked up at 150; smaller batches are never allowed less than larger ones.
    entries = fitted(run, tmp_path, seen(run))
    by_place = {place: entry.allowance for place, entry in entries.items() if place[0] == 4}
    one = Decimal("1.0")
    assert by_place == {
        (4, 150, "all"): Decimal("2.3"),
        (4, 50, "all"): Decimal("2.3"),
        (4, 150, 0): one,
        (4, 50, 0): one,
        (4, 150, 1): Decimal("2.3"),
        (4, 50, 1): Decimal("2.3"),
    }
    evidence = entries[4, 150, "all"].evidence
    assert evidence.binds == "floor"
    assert [(floor.value, floor.source, floor.layer) for floor in evidence.floors] == [
        (Decimal("2.3"), "guard.jsonl: step 12, rank 1", 1)
    ]
    assert entries[4, 50, "all"].evidence.floors == ()


def test_tokens_below_every_batch_size_are_a_floor_of_the_smallest_alone(run, tmp_path):
    entries = fitted(run, tmp_path, seen(run, batch_tokens=20, busiest_rows=23, routed_rows=40))
    assert entries[4, 50, "all"].allowance == Decimal("2.3")
    assert entries[4, 150, "all"].allowance == Decimal("1.0")


def test_of_several_lines_of_a_layer_the_largest_is_the_floor(run, tmp_path):
    larger = seen(run, event="larger", busiest_rows=251, imbalance=Decimal("2.51"))
    entries = fitted(run, tmp_path, seen(run), larger)
    assert entries[4, 150, "all"].allowance == Decimal("2.6")
    assert len(entries[4, 150, "all"].evidence.floors) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape_hash": "0" * 64}, "of another model than these runs"),
        ({"layer": 2}, "of another model than these runs"),
        ({"placement": "round-robin"}, "of placement round-robin, the fit is of contiguous"),
        ({"ep": 8}, "of EP 8, which is not fitted; --ep 2,4,8"),
        ({"busiest_rows": 400}, None),  # 4 x 400 / 400 = 4, the ceiling of EP 4 at 8 experts and top-2: it can be
    ],
)
def test_a_log_of_something_else_than_the_fit_is_refused(run, tmp_path, changes, said):
    if said is None:
        assert fitted(run, tmp_path, seen(run, **changes))[4, 150, "all"].allowance == 4
    else:
        with pytest.raises(InputError, match=said):
            fitted(run, tmp_path, seen(run, **changes))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"busiest_rows": 230', '"busiest_rows": 90', r"guard.jsonl:1:1: busiest_rows: 90 is no busiest rank's share of 400"),
        ('"busiest_rows": 230', '"busiest_rows": 401', "401 is no busiest rank's share of 400"),
        ('"ep": 4, ', "", "ep: is missing"),
        ('"rank": 1', '"rank": 4', "4 is no rank of ep=4"),
        ('"batch_tokens": 200', '"batch_tokens": 300', "batch_tokens: 400 rows of top-2 are 200 tokens, not 300"),
        ('"allowance": 1.2', '"allowance": -2.0', "allowance: -2.0 is below 1, which is even"),
        ('"allowance": 1.2', '"allowance": 0.99', "allowance: 0.99 is below 1, which is even"),
        ('"step": 12', '"step": "twelve"', "'twelve' is not a whole number"),
    ],
)
def test_a_line_that_a_guard_would_not_write_is_refused_with_its_place(run, tmp_path, old, new, said):
    log = tmp_path / "guard.jsonl"
    log.write_text(exceedance_line(seen(run)).replace(old, new) + "\n")
    with pytest.raises(InputError, match=said):
        fit([run.folder], out=tmp_path / "t.yaml", eps=(4,), batch_sizes=(50,), order="corpus", floor_logs=[log])


@pytest.mark.fault(
    "a trainer killed while its guard wrote a line of the log",
    how="the line cut after 1, 20 and all but its last character, behind a whole one",
    tries=3,
    outcome="the fit names the file and the line, and says to remove it",
)
@pytest.mark.parametrize("kept", [slice(1), slice(20), slice(-1)])
def test_a_torn_line_is_named_and_to_be_removed(run, tmp_path, kept):
    log, line = tmp_path / "guard.jsonl", exceedance_line(seen(run))
    log.write_text(f"{line}\n{line[kept]}")
    with pytest.raises(InputError, match=r"guard.jsonl:2: the line is torn, as a killed writer leaves it; remove this line$"):
        fit([run.folder], out=tmp_path / "t.yaml", eps=(4,), batch_sizes=(50,), order="corpus", floor_logs=[log])


def test_a_log_without_a_line_is_refused(run, tmp_path):
    log = tmp_path / "guard.jsonl"
    log.write_text("\n")
    with pytest.raises(InputError, match="holds no line"):
        fit([run.folder], out=tmp_path / "t.yaml", eps=(4,), batch_sizes=(50,), order="corpus", floor_logs=[log])
