"""Placements: how experts are gathered, what a table records of it, and a suggestion that is judged on what it has not seen.

8 experts, top-2, one MoE layer; a trajectory is a unit of one segment of 10 tokens, 20 rows.
"""

import json

import pytest

from routing.store.allowances import read_table
from routing.store.placements import read_placement
from tests.stores import write_tiny_run

# Experts 0 and 1 are hot: contiguous rank 0 of 4 has 10 of 20 rows, 2.0. Apart they make 5 + 1.67 at most.
HOT = [5, 5, 2, 2, 2, 2, 1, 1]
# Round-robin at EP 4 puts e and e + 4 together: 5 + 2, 5 + 2, 2 + 1, 2 + 1: 7 x 4 / 20 = 1.4. EP 2: 5 + 2 + 2 + 1 = 10 each, 1.0.
PAIRS = (0, 1, 2, 3, 0, 1, 2, 3)


@pytest.fixture(scope="module")
def hot_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "hot"
    loads = {(segment, 0): HOT for segment in range(12)}
    return write_tiny_run(
        folder, paths=[[segment] for segment in range(12)], segment_tokens=[10] * 12, loads=loads, num_experts=8, top_k=2
    ).folder


def placement_file(path, ranks=PAIRS, ep=4, layer=0):
    path.write_text(json.dumps({"ep": ep, "layers": [{"layer": layer, "ranks": ranks}]}))
    return path


def worst_by_ep(invoke, run, *arguments):
    code, out, err = invoke("imbalance", run, "--batch-tokens", 20, "--json", *arguments)
    assert code == 0, err
    body = json.loads(out)
    return body["placement"], {row["ep"]: (row["worst_imbalance"], row["worst_rank"]) for row in body["rows"]}


def test_imbalance_is_of_the_placement_that_was_asked_for(invoke, hot_run, tmp_path):
    assert worst_by_ep(invoke, hot_run) == ("contiguous", {2: (1.4, 0), 4: (2.0, 0), 8: (2.0, 0)})
    assert worst_by_ep(invoke, hot_run, "--placement", "round-robin") == ("round-robin", {2: (1.0, 0), 4: (1.4, 0), 8: (2.0, 0)})
    # Ranks 3, 2, 1, 0 for 0, 1, 2, 3: rank 2 has experts 1 and 5, rank 3 has 0 and 4; the smallest of equals.
    file = placement_file(tmp_path / "placement.json", [3 - rank for rank in PAIRS])
    name, worst = worst_by_ep(invoke, hot_run, "--placement", file)
    assert name == f"file sha256:{read_placement(file).content_hash}"
    assert worst == {4: (1.4, 2)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ep": 2, "ranks": PAIRS}, "a rank is above 1, the last of ep=2"),
        ({"ranks": (0, 0, 0, 1, 1, 2, 2, 3)}, "layers[0].ranks: unequal numbers of experts by rank: [3, 2, 2, 1]"),
        ({"ranks": (0, 1, 2, 3)}, "the file places 4 experts, the model has 8"),
        ({"layer": 1}, "layer 1: the model has no such MoE layer"),
    ],
)
def test_a_placement_that_is_none_of_the_model_is_refused(invoke, hot_run, tmp_path, change, said):
    file = placement_file(tmp_path / "placement.json", **change)
    code, out, err = invoke("imbalance", hot_run, "--batch-tokens", 20, "--placement", file)
    assert (code, out) == (2, "")
    assert said in err


def test_a_file_says_nothing_of_another_ep_size(invoke, hot_run, tmp_path):
    file = placement_file(tmp_path / "placement.json")
    code, _, err = invoke("fit", hot_run, "--batch-tokens", 20, "--placement", file, "--ep", "2,4", "--out", tmp_path / "t.yaml")
    assert code == 2
    assert "the file is of EP 4 and says nothing of EP 2, 4" in err


def test_a_table_records_its_placement_and_is_held_against_no_other(invoke, hot_run, tmp_path):
    file, table = placement_file(tmp_path / "placement.json"), tmp_path / "table.yaml"
    assert invoke("fit", hot_run, "--batch-tokens", 20, "--placement", file, "--out", table)[0] == 0
    recorded = read_table(table)
    (entry,) = recorded.entries
    # The worst is 1.4: 1 + 1.35 x 0.4 = 1.54, up to 1.6. No divisor lifts it, no other EP size is there.
    assert (entry.ep, str(entry.allowance), entry.evidence.binds) == (4, "1.6", "core")
    assert sorted(one.expert for one in entry.evidence.observed_max.top_experts) == [0, 4]
    code, _, err = invoke("check", table, hot_run)
    assert code == 2
    assert "name that file: --placement FILE" in err
    assert invoke("check", table, hot_run, "--placement", file)[0] == 0
    other = placement_file(tmp_path / "other.json", [3 - rank for rank in PAIRS])
    code, _, err = invoke("check", table, hot_run, "--placement", other)
    assert code == 2
    assert "is not the table's" in err


def test_a_round_robin_table_is_checked_as_it_was_fitted(invoke, hot_run, tmp_path):
    table = tmp_path / "table.yaml"
    code, _, err = invoke("fit", hot_run, "--batch-tokens", 20, "--placement", "round-robin", "--ep", "2,4", "--out", table)
    assert code == 0, err
    assert {entry.ep: str(entry.allowance) for entry in read_table(table).entries} == {2: "1.0", 4: "1.6"}
    code, out, _ = invoke("check", table, hot_run, "--json")
    assert code == 0
    assert {row["ep"]: row["worst_imbalance"] for row in json.loads(out)["compared"]} == {2: 1.0, 4: 1.4}


def test_the_suggested_placement_is_better_on_batches_that_it_was_not_packed_from(invoke, hot_run, tmp_path):
    out_file = tmp_path / "suggested.json"
    code, out, err = invoke("placement", "suggest", hot_run, "--ep", 4, "--batch-tokens", 20, "--out", out_file, "--json")
    assert code == 0, err
    body = json.loads(out)
    # Heaviest first: 0 to rank 0, 1 to 1, 2 to 2, 3 to 3, 4 (2 rows) to 2 and 5 to 3, then 6 and 7 to 0 and 1: 6, 6, 4, 4 of 20.
    (placed,) = read_placement(out_file).layers
    assert placed.ranks == (0, 1, 2, 3, 2, 3, 0, 1)
    assert [(half["num_batches"], half["num_worse"], half["contiguous"], half["suggested"]) for half in body["held_out"]] == [
        (3, 0, 2.0, 1.2),
        (3, 0, 2.0, 1.2),
    ]
    # 1 + 1.35 x 1 = 2.35 and 1 + 1.35 x 0.2 = 1.27, each up.
    assert (body["contiguous"]["allowance"], body["suggested"]["allowance"], body["saves"]) == (2.4, 1.3, 1.1)
    assert worst_by_ep(invoke, hot_run, "--placement", out_file)[1] == {4: (1.2, 0)}


def test_a_suggestion_that_is_worse_on_held_out_batches_is_said_and_not_written(invoke, tmp_path):
    # Ten tokens go to one pair of experts, never to neighbours: contiguous blocks are at 10 x 4 / 20 = 2.0, nothing is below.
    pairs = [(0, 2), (1, 4), (3, 6), (5, 7), (0, 5), (2, 7)]
    loads = {(unit, 0): [10 * (expert in pairs[unit % 6]) for expert in range(8)] for unit in range(12)}
    sizes = {"paths": [[unit] for unit in range(12)], "segment_tokens": [10] * 12, "num_experts": 8, "top_k": 2}
    run = write_tiny_run(tmp_path / "runs" / "apart", loads=loads, **sizes).folder
    out_file = tmp_path / "suggested.json"
    code, out, err = invoke("placement", "suggest", run, "--ep", 4, "--batch-tokens", 10, "--out", out_file, "--json")
    body = json.loads(out)
    assert [half["contiguous"] for half in body["held_out"]] == [2.0, 2.0]
    assert min(half["suggested"] for half in body["held_out"]) >= 2.0
    assert (code, body["is_better"], out_file.exists()) == (1, False, False)
    assert "keep contiguous" in err
