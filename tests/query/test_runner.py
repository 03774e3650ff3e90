"""SQL lives in files that say what they are, and reads nothing but the run."""

from importlib.resources import files

import duckdb
import pytest

from routing.query.runner import ask, connect, run_sql

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


def test_a_value_with_quotes_stays_a_value():
    with connect() as con:
        con.execute("CREATE TABLE batch_imbalances AS SELECT 2 AS ep, 9 AS batch_tokens")
        with pytest.raises(duckdb.Error):
            run_sql(con, "sql/batch_worsts.sql", ep="2; DROP TABLE batch_imbalances", batch_tokens=9).fetchall()
        assert con.table("batch_imbalances").fetchall() == [(2, 9)]
