"""Counts beyond 32 bits, and many runs in one question, give the same numbers as few and small ones."""

import json

import pytest

from tests.stores import write_tiny_run

TOKENS = 2_000_000_000  # of a unit; three of them pass 2**32
ROWS = [1_500_000_000, 200_000_000, 200_000_000, 100_000_000]  # of one layer's four experts


def _import(invoke, tmp_path, rows=ROWS, tokens=TOKENS):
    table = tmp_path / "counts.csv"
    lines = [f"u{unit},0,{expert},{count},{tokens}\n" for unit in range(3) for expert, count in enumerate(rows)]
    table.write_text("unit,layer,expert,routed_rows,num_tokens\n" + "".join(lines))
    return invoke("import", "counts", table, "--top-k", "1", "--out", tmp_path / "run")


@pytest.mark.fault(
    "counts beyond 16 and 32 bits",
    how="three units of 2,000,000,000 tokens, summed by a batch and by SQL",
    tries=2,
    outcome="summed in 64 bits: the imbalance and the sum worked by hand",
)
def test_sums_beyond_32_bits_are_exact(invoke, tmp_path):
    assert _import(invoke, tmp_path)[0] == 0
    code, out, err = invoke("imbalance", tmp_path / "run", "--ep", "2", "--batch-tokens", "6G", "--json")
    (row,) = json.loads(out)["rows"]
    # rank 0 holds 1.7 of 2.0 billion rows, the even share is 1.0
    assert (code, row["num_batches"], row["worst_imbalance"]) == (0, 1, 1.7), err
    _, out, _ = invoke("sql", tmp_path / "run", "SELECT sum(routed_rows) AS n FROM loads", "--json")
    assert json.loads(out)["rows"] == [{"n": 6_000_000_000}]


@pytest.mark.fault(
    "a count above what the store holds, or a product above 64 bits",
    how="an expert of 2**31 rows; a unit of 2**61 tokens whose rows are all zero",
    tries=2,
    outcome="refused, exit 2, with the unit and the limit",
)
@pytest.mark.parametrize(
    ("rows", "tokens", "said"),
    [([2**31, 0, 0, 0], 2**31, "above 2147483647"), ([0, 0, 0, 0], 2**61, "2305843009213693952 tokens, above 2147483647")],
)
def test_a_count_that_would_wrap_around_is_refused(invoke, tmp_path, rows, tokens, said):
    code, out, err = _import(invoke, tmp_path, rows, tokens)
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tokens", ["2147483648", "9223372036854775807", "9223372036854775808"])
def test_a_flag_of_too_many_tokens_is_refused(invoke, tmp_path, tokens):
    table = tmp_path / "counts.csv"
    table.write_text("unit,layer,expert,routed_rows\nu,0,0,0\nu,0,1,0\n")
    given = ("--num-tokens", tokens, "--top-k", "2", "--out", tmp_path / "run")
    code, _, err = invoke("import", "counts", table, *given)
    assert code == 2
    assert "--num-tokens" in err


def test_ten_runs_in_one_question_answer_as_each_does_alone(invoke, tmp_path):
    """Run r has 50 + r of 100 rows on the first of two ranks: imbalance 2 x (50 + r) / 100."""
    runs = [tmp_path / f"run{r}" for r in range(10)]
    for r, run in enumerate(runs):
        loads = {(0, 0): [50 + r, 50 - r]}
        write_tiny_run(run, paths=[[0]], segment_tokens=[100], loads=loads, num_experts=2, top_k=1, label=f"p{r}")
    code, out, err = invoke("imbalance", *runs, "--ep", "2", "--batch-tokens", "100", "--json")
    found = {row["run"]: row["worst_imbalance"] for row in json.loads(out)["rows"]}
    assert code == 0, err
    assert found == {f"run{r}": 2 * (50 + r) / 100 for r in range(10)}
    _, out, _ = invoke("sql", *runs, "SELECT count(DISTINCT run) AS n, sum(routed_rows) AS rows FROM loads", "--json")
    assert json.loads(out)["rows"] == [{"n": 10, "rows": 1000}]
