"""SQL lives in files that say what they are, and reads nothing but the run."""

import subprocess
import sys
from importlib.resources import files

import duckdb
import pytest

from routing.query.runner import ask, connect, run_sql
from tests.conftest import REPOSITORY

QUERIES = [path for folder in ("sql", "checks") for path in sorted(files("routing.query").joinpath(folder).iterdir(), key=str)]


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.name)
def test_a_query_is_headed_by_grain_reads_parameters_and_units(query):
    head = " ".join(line for line in query.read_text().splitlines() if line.startswith("--"))
    assert query.name.endswith(".sql")
    for word in ("grain:", "reads:", "parameters:", "units:"):
        assert word in head


def test_a_python_variable_is_never_a_table():
    loads = layer_loads = duckdb.sql("SELECT 1 AS num_rows, 1 AS num_strays, 1 AS num_experts")
    assert loads is layer_loads
    with connect() as con, pytest.raises(duckdb.CatalogException, match="layer_loads"):
        ask(con, "sql/repeated_rows.sql")


def test_no_bar_is_drawn_into_an_answer_where_python_has_no_file():
    ask_setting = """connect().execute("SELECT current_setting('enable_progress_bar')").fetchall()"""
    code = f"from routing.query.runner import connect; print({ask_setting})"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[(False,)]\n"


def test_a_value_with_quotes_stays_a_value():
    with connect() as con:
        con.execute("CREATE TABLE batch_imbalances AS SELECT 2 AS ep, 9 AS batch_tokens")
        with pytest.raises(duckdb.Error):
            run_sql(con, "sql/batch_worsts.sql", ep="2; DROP TABLE batch_imbalances", batch_tokens=9).fetchall()
        assert con.table("batch_imbalances").fetchall() == [(2, 9)]
