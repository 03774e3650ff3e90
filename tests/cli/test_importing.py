"""`routing import` takes what others recorded, says so wherever it is shown, and exits as every verb does."""

import json

import pytest

ROWS = ["unit,layer,expert,routed_rows", "a,2,0,4", "a,2,1,2", "a,2,2,1", "a,2,3,1", "b,2,0,2", "b,2,1,2", "b,2,2,2", "b,2,3,2"]


@pytest.fixture
def counts_file(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("\n".join(ROWS) + "\n")
    return path


def test_recorded_counts_are_said_to_be_recorded(invoke, counts_file, tmp_path):
    run = tmp_path / "run"
    flags = ("--num-tokens", "4", "--top-k", "2", "--out", run, "--engine", "olmoe paper")
    code, out, _ = invoke("import", "counts", counts_file, *flags, "--json")
    assert code == 0
    assert {"origin": "recorded", "trajectories": 2, "missing_layers": None}.items() <= json.loads(out).items()
    code, out, _ = invoke("show", run, "--json")
    facts = json.loads(out)["runs"][0]
    assert (code, facts["origin"], facts["recording"]["engine"]) == (0, "recorded", "olmoe paper")
    code, out, err = invoke("imbalance", run, "--ep", "2", "--batch-tokens", "4", "--json")
    # unit a: 6 of 8 rows are rank 0's, 6 x 2 / 8
    assert (code, json.loads(out)["rows"][0]["worst_imbalance"]) == (0, 1.5)
    assert "warning: recorded: run: loads recorded by olmoe paper and imported, not measured" in err


def test_a_recorded_run_fits_with_that_as_a_warning(invoke, counts_file, tmp_path):
    run, table = tmp_path / "run", tmp_path / "table.yaml"
    invoke("import", "counts", counts_file, "--num-tokens", "4", "--top-k", "2", "--out", run)
    code, _, err = invoke("fit", run, "--ep", "2", "--batch-tokens", "4", "--out", table)
    assert (code, "warning: recorded: run:" in err) == (0, True)
    code, _, _ = invoke("report", run, "--allowances", table, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert (code, "recorded by another engine and imported" in page) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--num-tokens", "5", "--top-k", "2"], 1, "layer 2: 8 routed rows, 5 tokens x top-2 are 10"),
        (["--num-tokens", "4"], 2, "--top-k K"),
        (["--num-tokens", "4", "--top-k", "2", "--label", "\n"], 2, "--label"),
    ],
)
def test_bad_counts_end_in_one_line_and_no_run(invoke, counts_file, tmp_path, arguments, code, said):
    found, out, err = invoke("import", "counts", counts_file, *arguments, "--out", tmp_path / "run")
    assert (found, out, (tmp_path / "run").exists()) == (code, "", False)
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("layers", "said"),
    [("1,x", "--layers: 'x' is no layer or range of layers"), ("0-2,5-3", "--layers: '5-3' runs backwards; as 3-5")],
)
def test_layers_are_numbers_or_rising_ranges(invoke, counts_file, tmp_path, layers, said):
    code, _, err = invoke("import", "routes", counts_file, "--model", tmp_path, "--out", tmp_path / "run", "--layers", layers)
    assert (code, said in err) == (2, True)
