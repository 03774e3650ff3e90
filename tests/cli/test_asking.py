"""`routing sql` reads the runs and nothing else, says which run a row is of, and stops at its limits."""

import csv
import io
import json
import subprocess
import sys

import duckdb
import pyarrow.parquet as pq
import pytest

from routing.core.errors import StorageError
from routing.query.guarded import Limits, answer, guarded, read_question
from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

LIMITS = Limits(memory_gb=0.3, time_s=20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two policies over two trajectories of 10 tokens, 4 experts, top-1, in two layers."""
    folder = tmp_path_factory.mktemp("asked")
    even = {(segment, layer): [3, 2, 3, 2] for segment in range(2) for layer in (0, 2)}
    loads = {"base": even, "tuned": {**even, (1, 2): [8, 1, 1, 0]}}
    shape = {"paths": [[0], [1]], "segment_tokens": [10, 10], "num_experts": 4, "top_k": 1, "layers": (0, 2)}
    for name, rows in loads.items():
        write_tiny_run(folder / name, loads=rows, label=f"the {name}'s", **shape)
    return folder / "base", folder / "tuned"


def _rows(answered):
    code, out, err = answered
    assert code == 0, err
    return json.loads(out)["rows"]


def _ask(invoke, runs, query, *flags):
    return invoke("sql", *runs, query, "--batch-tokens", "10", *flags)


def test_the_imbalance_view_holds_every_batch_and_layer_that_the_worst_is_taken_over(invoke, runs):
    query = "SELECT run, ep, batch, layer, imbalance FROM imbalance WHERE ep = 2 ORDER BY ALL"
    rows = _rows(_ask(invoke, runs, query, "--json", "--ep", "2,4"))
    # Experts 0 and 1 are rank 0 of 2: (3 + 2) x 2 / 10 is even, (8 + 1) x 2 / 10 is not.
    found = {(row["run"], row["batch"], row["layer"]): row["imbalance"] for row in rows}
    assert found == {(run, batch, layer): 1.0 for run in ("base", "tuned") for batch in (0, 1) for layer in (0, 2)} | {
        ("tuned", 1, 2): 1.8
    }


def test_rank_loads_and_batches_lead_back_to_the_loads(invoke, runs):
    query = """
        SELECT SUM(ranks.routed_rows) AS by_rank, (SELECT SUM(loads.routed_rows * copies)
        FROM batches JOIN loads USING (run, segment_id) WHERE run = 'tuned') AS by_expert
        FROM rank_loads AS ranks WHERE run = 'tuned' AND ep = 4
    """
    assert _rows(_ask(invoke, runs, query, "--json")) == [{"by_rank": 40, "by_expert": 40}]  # 2 layers x 20 tokens x top-1


def test_a_label_with_a_quote_is_shown_as_it_is(invoke, runs):
    rows = _rows(_ask(invoke, runs, "SELECT DISTINCT run, label FROM segments ORDER BY run", "--json"))
    assert rows == [{"run": "base", "label": "the base's"}, {"run": "tuned", "label": "the tuned's"}]


@pytest.mark.fault(
    "rows of two policies taken together in a query",
    how="four queries that forget the run",
    tries=4,
    outcome="exit 2 with what to add; asked of one run they answer",
)
@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("SELECT SUM(routed_rows) FROM loads", "GROUP BY run"),
        ("SELECT layer, MAX(imbalance) FROM imbalance GROUP BY layer", "GROUP BY run"),
        ("SELECT loads.run, COUNT(*) FROM loads JOIN segments USING (segment_id) GROUP BY ALL", "join on run"),
        ("SELECT a.run FROM paths a JOIN segments b ON a.segment_id = b.segment_id", "join on run"),
    ],
)
def test_rows_of_two_policies_are_never_taken_together_unnoticed(invoke, runs, query, word):
    code, out, err = _ask(invoke, runs, query)
    assert (code, out) == (2, "")
    assert word in err
    assert _ask(invoke, runs[:1], query)[0] == 0


HOSTILE = [
    "COPY loads TO 'stolen.csv'",
    "COPY (SELECT 1) TO 'stolen.parquet' (FORMAT parquet)",
    "EXPORT DATABASE 'stolen'",
    "ATTACH 'stolen.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "PRAGMA enable_profiling",
    "CALL enable_logging(storage = 'file', storage_path = 'stolen')",
    "CREATE TABLE stolen AS SELECT 1",
    "DROP VIEW loads",
    "DELETE FROM loads",
    "PREPARE q AS SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY loads TO 'stolen.csv'",
    "EXPLAIN ANALYZE SELECT 1",
    "WITH gone AS (DELETE FROM segments RETURNING *) SELECT * FROM gone",
    "FROM read_csv('/etc/passwd')",
    "FROM READ_TEXT('/etc/passwd')",
    "FROM read_blob('/etc/passwd')",
    "FROM read_json_auto('/etc/passwd')",
    "FROM read_parquet('{part}')",
    "FROM parquet_scan('{part}')",
    "FROM parquet_metadata('{part}')",
    "FROM glob('/etc/*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM '/etc/passwd'",
    "FROM '{part}'",
    "FROM 'https://example.org/a.parquet'",
    "FROM query('SELECT 1')",
    "FROM query_table('loads')",
    "FROM duckdb_settings()",
    "FROM enable_profiling(save_location = 'stolen.json')",
    "FROM checkpoint()",
    "SELECT * FROM segments WHERE num_tokens IN (SELECT 1 FROM read_csv('/etc/passwd'))",
    "WITH a AS (WITH b AS (FROM glob('*')) FROM b) FROM a",
    "SELECT getenv('HOME')",
    "SELECT",
    "",
    "SELECT * FROM nowhere",
    "SELECT 'a'::INTEGER",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
]


@pytest.mark.parametrize("query", HOSTILE)
def test_what_is_no_select_over_the_views_is_one_line_and_touches_nothing(invoke, runs, tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    part = runs[0] / "loads-00000.parquet"
    before = {path.name: path.read_bytes() for path in runs[0].iterdir() if path.is_file()}
    (tmp_path / "q.sql").write_text(query.replace("{part}", str(part)))
    code, out, err = invoke("sql", runs[0], "q.sql")
    assert (code, out) == (2, "")
    assert [line.startswith("routing: sql: ") for line in err.splitlines()] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["q.sql"]
    assert {path.name: path.read_bytes() for path in runs[0].iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{folder}/stolen.csv'",
        "FROM read_csv('/etc/passwd')",
        "FROM glob('/etc/*')",
        "ATTACH '{folder}/stolen.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET allowed_paths = ['/etc/passwd']",
        "CALL enable_profiling(save_location = '{folder}/stolen.json')",
        "CALL enable_logging(storage = 'file', storage_path = '{folder}')",
    ],
)
def test_the_engine_refuses_files_and_settings_even_where_no_query_is_looked_at(tmp_path, query):
    with (
        guarded([], LIMITS) as con,
        pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException), match="configuration"),
    ):
        con.execute(query.replace("{folder}", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "limits", "flag"),
    [
        ("SELECT COUNT(*) FROM range(100000000000) a, range(1000) b", Limits(memory_gb=0.3, time_s=0.2), "--time-s"),
        ("SELECT LIST(a.range) FROM range(1000000000) a", LIMITS, "--memory-gb"),
        ("SELECT a.range, b.range FROM range(1000000) a, range(1000000) b", LIMITS, "--memory-gb"),
    ],
)
def test_a_query_stops_at_its_limits_and_names_the_flag(query, limits, flag):
    with guarded([], limits) as con, pytest.raises(StorageError, match=flag):
        answer(con, read_question(query), limits)


def test_one_huge_value_is_no_way_around_the_memory_limit(runs):
    query = "SELECT LENGTH(REPEAT('x', 3000000000))"
    command = [sys.executable, "-m", "routing", "sql", str(runs[0]), query, "--memory-gb", "0.3"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "--memory-gb" in done.stderr


def test_a_piped_answer_is_csv_that_reads_back(invoke, runs):
    code, out, _ = _ask(invoke, runs, "SELECT 'a,\"b\"' AS text, NULL AS nothing, SUM(1) AS whole, 'NaN'::DOUBLE AS undefined")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [["text", "nothing", "whole", "undefined"], ['a,"b"', "", "1", ""]]


def test_json_has_null_for_what_is_no_number_and_numbers_names_apart(invoke, runs):
    code, out, _ = _ask(invoke, runs, "SELECT 'inf'::DOUBLE AS a, 2 AS a", "--json")
    assert (code, json.loads(out)) == (0, {"columns": ["a", "a_1"], "rows": [{"a": None, "a_1": 2}]})


def test_parquet_on_a_pipe_reads_back(runs, tmp_path):
    command = [sys.executable, "-m", "routing", "sql", *map(str, runs), "SELECT run, segment_id FROM segments ORDER BY ALL"]
    with open(tmp_path / "answer.parquet", "wb") as stream:
        subprocess.run([*command, "--format", "parquet"], cwd=REPOSITORY, stdout=stream, check=True)
    assert pq.read_table(tmp_path / "answer.parquet").to_pylist() == [
        {"run": run, "segment_id": segment} for run in ("base", "tuned") for segment in range(2)
    ]


def test_a_table_is_for_a_terminal_and_says_what_it_leaves_out(invoke, runs):
    code, out, err = _ask(invoke, runs, "SELECT range AS n FROM range(102)", "--format", "table")
    assert (code, "99" in out, "101" in out) == (0, True, False)
    assert "the first 100 of 102 rows" in err


def test_a_query_comes_from_a_file_or_a_pipe(invoke, runs, tmp_path, monkeypatch):
    (tmp_path / "ask me.sql").write_text("SELECT 1 AS one")
    (tmp_path / "ask.sql").write_text("-- how many\nSELECT COUNT(*) AS n FROM segments")
    assert _rows(invoke("sql", runs[0], tmp_path / "ask.sql", "--json")) == [{"n": 2}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 3 AS three;"))
    assert _rows(invoke("sql", runs[0], "--json")) == [{"three": 3}]


def test_a_prompt_goes_on_after_a_wrong_question(invoke, runs, monkeypatch):
    lines = iter(["SELECT nonsense;", "SELECT 5", "AS five;", ""])

    def read(_prompt):
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr("builtins.input", read)
    code, out, err = invoke("sql", runs[0])
    assert (code, out) == (0, "five\n5\n")
    assert "nonsense" in err


def test_repeated_loads_count_once(invoke, tmp_path):
    loads = {(0, 0): [6, 4]}
    write_tiny_run(tmp_path / "twice", paths=[[0]], segment_tokens=[10], loads=[loads, loads], num_experts=2, top_k=1)
    for query in ("SELECT SUM(routed_rows) AS n FROM loads", "SELECT SUM(routed_rows) AS n FROM loads, (SELECT 1 FROM batches)"):
        assert _rows(_ask(invoke, [tmp_path / "twice"], query, "--json")) == [{"n": 10}]


@pytest.mark.parametrize(("name", "neighbour"), [("g[1]", "g1"), ("b*", "bx"), ("c?", "cx")])
def test_a_run_below_a_folder_that_reads_as_a_pattern_is_asked_itself(invoke, tmp_path, name, neighbour):
    for folder, tokens in ((name, 7), (neighbour, 5)):
        write_tiny_run(
            tmp_path / folder / "run", paths=[[0]], segment_tokens=[tokens], loads={(0, 0): [tokens, 0]}, num_experts=2, top_k=1
        )
    assert _rows(invoke("sql", tmp_path / name / "run", "SELECT SUM(routed_rows) AS n FROM loads", "--json")) == [{"n": 7}]


def test_runs_of_one_name_an_unfinished_and_a_failing_one_are_refused(invoke, runs, tmp_path):
    one = {"paths": [[0]], "segment_tokens": [10], "num_experts": 2, "top_k": 1}
    write_tiny_run(tmp_path / "base", loads={(0, 0): [6, 4]}, **one)
    write_tiny_run(tmp_path / "begun", loads={(0, 0): [6, 4]}, is_finished=False, **one)
    write_tiny_run(tmp_path / "wrong", loads={(0, 0): [6, 3]}, **one)
    for folders, code, word in (
        ([runs[0], tmp_path / "base"], 2, "two runs of this name"),
        ([tmp_path / "begun"], 2, "unfinished"),
        ([tmp_path / "wrong"], 1, "rows_conserved"),
    ):
        answered = invoke("sql", *folders, "SELECT 1 AS one")
        assert (answered[0], answered[1]) == (code, "")
        assert word in answered[2]


@pytest.mark.parametrize("flag", ["--memory-gb", "--time-s"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "0", "-1", "0.09", "lots", ""])
def test_a_limit_that_limits_nothing_is_refused(invoke, runs, flag, value):
    code, out, err = _ask(invoke, runs[:1], "SELECT 1", f"{flag}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{flag}: {value!r} is no number of " in err


@pytest.mark.parametrize("flags", [("--memory-gb", "0.1"), ("--memory-gb", "100000"), ("--time-s", "1e6")])
def test_the_ends_of_a_limits_range_are_in_it(invoke, runs, flags):
    assert _rows(_ask(invoke, runs[:1], "SELECT 1 AS one", "--json", *flags)) == [{"one": 1}]


def test_a_query_that_is_no_text_is_the_askers_fault_and_not_the_runs(invoke, runs, tmp_path, monkeypatch):
    strict = io.TextIOWrapper(io.BytesIO(b"\xff\xfe SELECT 1"), encoding="utf-8")
    lenient = io.TextIOWrapper(io.BytesIO(b"\xff\xfe SELECT 1"), encoding="utf-8", errors="surrogateescape")
    (tmp_path / "ask.sql").write_bytes(b"SELECT '\xff'")
    for stream, last in [(strict, ()), (lenient, ()), (None, ("SELECT '\udcff'",)), (None, (tmp_path / "ask.sql",))]:
        monkeypatch.setattr(sys, "stdin", stream)
        code, out, err = invoke("sql", runs[0], *last)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "not UTF-8 at " in err


@pytest.mark.parametrize("depth", [900, 1200, 20_000])
def test_a_query_that_nests_too_deep_is_not_told_to_set_what_it_may_not(invoke, runs, depth):
    code, out, err = invoke("sql", runs[0], "SELECT " + "NOT " * depth + "true AS one")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the query nests too deep; ask in steps" in err
    assert "SET" not in err
