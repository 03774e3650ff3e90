"""Runs in Python: Polars frames of fixed columns and types, the command line's own figures, warnings as warnings."""

import json
import subprocess
import sys
import warnings

import polars as pl
import pytest

import routing
from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

LOADS = {(0, 0): [4, 1, 3, 2], (1, 0): [8, 1, 1, 0], (2, 0): [2, 3, 2, 3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three trajectories of 10 tokens, one layer of 4 experts, top-1."""
    path = tmp_path_factory.mktemp("frames") / "run"
    write_tiny_run(path, paths=[[0], [1], [2]], segment_tokens=[10] * 3, loads=LOADS, num_experts=4, top_k=1, label="the tuned")
    return path


@pytest.fixture(scope="module")
def run(folder):
    return routing.open_run(folder)


def test_the_worst_is_the_busiest_rank_over_the_even_share(run):
    frame = run.imbalance(ep=2, batch_tokens=10)
    (row,) = frame.to_dicts()
    # Experts 0 and 1 of segment 1 hold 9 of 10 rows: 9 x 2 / 10.
    assert (row["worst_imbalance"], row["worst_batch"], row["worst_layer"], row["worst_rank"]) == (1.8, 1, 0, 0)
    assert (row["run"], row["label"], row["num_batches"], row["num_tokens"]) == ("run", "the tuned", 3, 30)


def test_the_command_line_has_the_same_rows(run, folder, invoke_json):
    frame = run.imbalance(ep=[2, 4], batch_tokens=[10, 20], order=3, by_layer=True)
    rows = invoke_json("imbalance", folder, "--ep", "2,4", "--batch-tokens", "10,20", "--order", "3", "--by", "layer")
    assert frame.to_dicts() == rows


@pytest.fixture
def invoke_json():
    def call(*arguments):
        command = [sys.executable, "-m", "routing", *map(str, arguments), "--json"]
        return json.loads(subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout)["rows"]

    return call


def test_columns_keep_their_types_where_no_batch_is_full(run):
    with pytest.warns(UserWarning, match="no_full_batch"):
        empty = run.imbalance(ep=2, batch_tokens=1000)
    assert empty.schema == run.imbalance(ep=2, batch_tokens=10).schema
    assert empty["worst_imbalance"].to_list() == [None]
    with pytest.warns(UserWarning, match="no_full_batch"):
        assert run.worst(ep=2, batch_tokens=1000).schema == run.worst(ep=2, batch_tokens=10).schema


def test_the_worst_batches_come_first_with_their_place(run):
    worst = run.worst(ep=2, batch_tokens=10)
    # By segment, rank 0 has 5, 9 and 5 of 10 rows: 1.0, 1.8, 1.0; equals stay in their order.
    assert worst["batch"].to_list() == [1, 0, 2]
    assert worst["worst_imbalance"].to_list() == [1.8, 1.0, 1.0]
    assert worst["busiest_rows"].to_list() == [9, 5, 5]


def test_other_placements_are_asked_by_name(run):
    # Round-robin at EP 2 puts experts 0 and 2 of segment 1 together: again 9 of 10 rows, and 7 of 10 of segment 0.
    worst = run.worst(ep=2, batch_tokens=10, placement="round-robin")
    assert worst.sort("batch")["busiest_rows"].to_list() == [7, 9, 6]


def test_loads_are_lazy_and_dense(run):
    loads = run.loads()
    assert isinstance(loads, pl.LazyFrame)
    found = loads.group_by("segment_id").agg("routed_rows").sort("segment_id").collect()
    assert found["routed_rows"].to_list() == list(LOADS.values())


def test_loads_that_are_there_twice_count_once(tmp_path):
    two = [{(0, 0): [6, 4]}, {(0, 0): [6, 4]}]
    write_tiny_run(tmp_path / "twice", paths=[[0]], segment_tokens=[10], loads=two, num_experts=2, top_k=1)
    with pytest.warns(UserWarning, match="repeated_loads"):
        loads = routing.open_run(tmp_path / "twice").loads()
    assert loads.select(pl.col("routed_rows").sum()).collect().item() == 10


@pytest.mark.parametrize(("name", "neighbour"), [("g[1]", "g1"), ("b*", "bx")])
def test_loads_below_a_folder_that_reads_as_a_pattern_are_its_own(tmp_path, name, neighbour):
    for folder, tokens in ((name, 7), (neighbour, 5)):
        loads = {(0, 0): [tokens, 0]}
        write_tiny_run(tmp_path / folder / "run", paths=[[0]], segment_tokens=[tokens], loads=loads, num_experts=2, top_k=1)
    loads = routing.open_run(tmp_path / name / "run").loads()
    assert loads.select(pl.col("routed_rows").sum()).collect().item() == 7


def test_the_stored_tables_are_frames(run):
    assert run.segments()["num_tokens"].to_list() == [10, 10, 10]
    assert run.trajectories()["unit"].to_list() == ["task/0", "task/1", "task/2"]
    assert run.paths().select("trajectory_id", "segment_id").rows() == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"ep": 3}, "valid sizes: 2, 4"),
        ({"ep": [2, 2]}, "several distinct"),
        ({"ep": True}, "whole number"),
        ({"ep": []}, "whole number"),
        ({"ep": 2.0}, "whole number"),
        ({"ep": "2"}, "whole number"),
        ({"ep": 2, "batch_tokens": 0}, "not positive"),
        ({"ep": 2, "view": "flat"}, "packed nor logical"),
        ({"ep": 2, "order": "random"}, "corpus"),
        ({"ep": 2, "placement": "nowhere.json"}, "nowhere.json"),
    ],
)
def test_what_cannot_be_asked_is_one_line(run, asked, word):
    with pytest.raises(routing.InputError, match=word) as told:
        run.imbalance(**asked)
    assert "\n" not in str(told.value)


def test_a_fit_is_the_table_that_the_command_writes(folder, tmp_path):
    command = ["fit", str(folder), "--ep", "2,4", "--batch-tokens", "10", "--out", str(tmp_path / "command.yaml")]
    subprocess.run([sys.executable, "-m", "routing", *command], cwd=REPOSITORY, capture_output=True, check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = routing.fit(routing.open_run(folder), ep=[2, 4], batch_tokens=10)
        again = routing.fit([folder], ep=[2, 4], batch_tokens=10, out=tmp_path / "python.yaml")
    assert table.entries == again.entries == routing.read_table(tmp_path / "command.yaml").entries
    assert routing.read_table(tmp_path / "python.yaml") == again


def test_the_function_keeps_its_name_beside_the_room_of_that_name():
    code = "import routing.fit.table, routing; from routing.fit import resample; print(routing.fit.__name__, resample.__name__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fit", "routing.fit.resample"]
