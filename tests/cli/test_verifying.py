"""`routing verify` and `routing repair` as typed: what they print, and how they end."""

import json
from dataclasses import replace

import pytest

from routing.stages import verify as verifying
from routing.store.manifest import decode, encode
from routing.verify import entries
from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

SIZES = ("--batch-tokens", "2k", "--ep", "2,4")


def _write(folder, rows, **changes):
    """Four trajectories of 1000 tokens, one layer of four experts, top-1: two batches of 2k, segment s moves s rows."""
    loads = {(segment, 0): [rows[0] + segment, rows[1] - segment, *rows[2:]] for segment in range(4)}
    paths = [[segment] for segment in range(4)]
    made = {"paths": paths, "segment_tokens": [1000] * 4, "loads": loads, "num_experts": 4, "top_k": 1}
    write_tiny_run(folder, **(made | changes))
    return folder


@pytest.fixture
def run(tmp_path):
    return _write(tmp_path / "run", [400, 300, 200, 100])


@pytest.fixture
def table(run, tmp_path, invoke):
    assert invoke("fit", run, *SIZES, "--per-layer", "--out", tmp_path / "table.yaml")[0] == 0
    return tmp_path / "table.yaml"


def _said(err):
    return [line for line in err.splitlines() if line.startswith("routing: ")]


def test_a_sound_run_is_verified_check_by_check(invoke, run):
    code, out, _ = invoke("verify", run, "--json")
    rows = {row["check"]: row for row in json.loads(out)["rows"]}
    assert code == 0
    assert {row["num_failed"] for row in rows.values()} == {0}
    assert rows["rows_conserved"] == {
        "run": "run",
        "check": "rows_conserved",
        "num_checked": 4,
        "of": "segments and layers",
        "num_failed": 0,
        "first_failure": "",
    }
    # EP 2 and 4 in one layer; two batches of 2k, of which EP 2 lies in EP 4.
    assert (rows["imbalance 2000"]["num_checked"], rows["nested_imbalance 2000"]["num_checked"]) == (2, 2)
    code, out, _ = invoke("verify", run)
    assert code == 0
    assert "rows_conserved" in out


def test_a_failed_check_is_shown_and_ends_with_exit_1(invoke, tmp_path):
    short = _write(tmp_path / "short", [400, 300, 200, 100], loads={(s, 0): [400, 300, 200, 99 + (s > 1)] for s in range(4)})
    code, out, err = invoke("verify", short)
    assert code == 1
    assert "segment 0, layer 0: 999 rows, 1000 tokens x top-1 = 1000" in out
    (said,) = _said(err)
    assert "rows_conserved fails in 2 places, the first: segment 0, layer 0: 999 rows" in said


@pytest.mark.fault(
    "an answer of the query room that is wrong",
    how="the largest imbalance of one layer off by 1e-12",
    tries=1,
    outcome="verify: exit 1, both figures named",
)
def test_an_answer_that_the_second_way_does_not_confirm_is_exit_1(invoke, run, monkeypatch):
    answered = verifying.imbalance_rows
    assert invoke("verify", run)[0] == 0  # what the run keeps of this is not taken for an answer

    def wrong(*asked, **more):
        rows, cautions = answered(*asked, **more)
        return [row | {"worst_imbalance": (row["worst_imbalance"] or 0) + 1e-12} for row in rows], cautions

    monkeypatch.setattr(verifying, "imbalance_rows", wrong)
    code, out, err = invoke("verify", run)
    assert (code, "by NumPy" in out, "by NumPy" in _said(err)[0]) == (1, True, True)


@pytest.mark.fault(
    "loads under another content hash, each part as its own hash says",
    how="the manifest hashed anew around it",
    tries=1,
    outcome="verify: exit 3, nothing printed",
)
def test_another_content_hash_is_damage(invoke, run):
    path = run / "manifest.json"
    path.write_bytes(encode(replace(decode(path.read_bytes(), where="here"), content_hash="0" * 64)))
    code, out, err = invoke("verify", run)
    assert (code, out) == (3, "")
    assert "content hash" in _said(err)[0]


def test_repeats_are_dropped_with_a_notice_and_other_rows_are_damage(invoke, tmp_path):
    tree = {"paths": [[0]], "segment_tokens": [5], "num_experts": 2, "top_k": 1}
    write_tiny_run(tmp_path / "twice", loads=[{(0, 0): [3, 2]}, {(0, 0): [3, 2]}], **tree)
    code, _, err = invoke("verify", tmp_path / "twice")
    assert (code, "1 segments are there twice, the exact repeats are dropped" in err) == (0, True)
    write_tiny_run(tmp_path / "other", loads=[{(0, 0): [3, 2]}, {(0, 0): [2, 3]}], content_hash_text="0" * 64, **tree)
    code, out, err = invoke("verify", tmp_path / "other")
    assert (code, out) == (3, "")
    assert "counted twice with different rows" in err


def test_recorded_counts_are_verified_like_measured_ones(invoke, tmp_path):
    # 10 tokens to 2 of 9 experts, which no EP of 2, 4 or 8 divides: 20 rows.
    lines = [f"0,{expert},{rows}" for expert, rows in enumerate([10, 2, 1, 1, 1, 1, 1, 1, 2])]
    (tmp_path / "counts.csv").write_text("\n".join(["layer,expert,routed_rows", *lines, ""]))
    run = tmp_path / "recorded"
    assert invoke("import", "counts", tmp_path / "counts.csv", "--num-tokens", 10, "--top-k", 2, "--out", run)[0] == 0
    code, out, _ = invoke("verify", run, "--json")
    rows = {row["check"]: row["num_failed"] for row in json.loads(out)["rows"]}
    assert (code, rows["nested_ep 3 in 9"], set(rows.values())) == (0, 0, {0})


def test_a_table_that_a_fit_wrote_is_fitted_again_to_the_same(invoke, run, table):
    code, out, _ = invoke("verify", table, "--runs", run, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert {row["outcome"] for row in rows} == {"equal"}
    assert [(row["ep"], row["batch_tokens"], row["layer"]) for row in rows] == [
        *((ep, 2000, "all") for ep in (2, 4)),
        *((ep, 2000, 0) for ep in (2, 4)),
    ]


@pytest.mark.fault(
    "an allowance edited by hand and answered for",
    how="an allowance, a number of batches or of rows raised under an override",
    tries=3,
    outcome="verify: exit 1, entry, field and both values named",
)
@pytest.mark.parametrize(
    ("key", "old", "new"), [("allowance", "1.6", "1.7"), ("num_batches", "2", "3"), ("busiest_rows", "1400", "1401")]
)
def test_an_edit_that_somebody_answers_for_is_named(invoke, run, table, key, old, new):
    """Two batches of two segments. Rank 0 of two has 700 of each 1000 rows: 1.4, with 1.35 times the excess 1.54, so 1.6."""
    edited = table.read_text().replace(f"{key}: {old}\n", f"{key}: {new}\n", 1)
    assert edited != table.read_text()
    table.write_text(f"{edited}override:\n  reason: to see\n  name: A. Person\n")
    code, out, err = invoke("verify", table, "--runs", run)
    assert (code, "differs" in out) == (1, True)
    assert f"{key} {new} against {old}" in _said(err)[0]


def test_a_table_is_verified_with_the_runs_that_it_rests_on_and_no_others(invoke, run, table, tmp_path):
    other = _write(tmp_path / "other", [500, 200, 200, 100], label="other")
    for asked, exit_code, word in (
        ((table,), 2, "--runs RUN"),
        ((table, other), 1, "rests on a run 'run' with content hash"),
        ((table, run, other), 1, f"does not rest on {other}"),
        ((table, table, run), 2, "a second table"),
        ((REPOSITORY / "allowances.yaml", run), 2, "is published, not fitted from runs; there is nothing to fit again"),
        ((run, "--placement", "round-robin"), 2, "--placement: is of an allowance table"),
        ((run, "--runs", other), 2, "--runs: is of an allowance table; none was named"),
        ((tmp_path / "absent",), 2, "no run here"),
    ):
        code, out, err = invoke("verify", *asked)
        assert (code, out, word in _said(err)[0]) == (exit_code, "", True), (asked, err)


def test_repair_says_what_it_found_and_what_comes_next(invoke, run):
    assert invoke("repair", run)[:2] == (0, "run: nothing is damaged\nnext: nothing: the run is whole\n")
    (run / "loads-00000.parquet").write_bytes(b"")
    size = decode((run / "manifest.json").read_bytes(), where="here").parts[-1].num_bytes
    fault = f"loads-00000.parquet: 0 bytes, the manifest says {size}"
    assert invoke("repair", run, "--dry-run")[:2] == (0, f"{fault}\nnext: routing repair {run}\n")
    code, out, _ = invoke("repair", run)
    again = "next: the same routing measure again: routing test"
    assert (code, out) == (0, f"{fault} -> damaged/loads-00000.parquet\n{again}\n")
    code, out, err = invoke("imbalance", run)
    assert (code, out) == (2, "")
    assert "unfinished, 0 of 1 parts" in _said(err)[0]


@pytest.mark.fault(
    "a table whose run fails the second way's own checks",
    how="a total, or the corpus hash, of the manifest altered and hashed anew, which no fit reads",
    tries=2,
    outcome="verify: exit 1 and exit 3, nothing printed",
)
@pytest.mark.parametrize(
    ("altered", "exit_code", "said"),
    [({"tokens_packed": 4001}, 1, "totals fails in one place"), ({"corpus_hash": "f" * 64}, 3, "corpus_hash fails in one place")],
)
def test_a_table_is_not_confirmed_from_a_run_that_fails_a_check(invoke, run, table, altered, exit_code, said):
    path = run / "manifest.json"
    manifest = decode(path.read_bytes(), where="here")
    path.write_bytes(encode(replace(manifest, corpus=replace(manifest.corpus, **altered))))
    code, out, err = invoke("verify", table, "--runs", run)
    assert (code, out, said in _said(err)[0]) == (exit_code, "", True), err


def test_batches_are_cut_once_a_size_and_run(invoke, run, table, monkeypatch):
    cut, sizes = entries.cut, []
    monkeypatch.setattr(entries, "cut", lambda tree, **asked: sizes.append(asked["batch_tokens"]) or cut(tree, **asked))
    assert invoke("verify", table, "--runs", run)[0] == 0
    assert sizes == [2000]
