"""The page of faults says what the marked tests say, row for row."""

import os
import re
import subprocess
import sys

import pytest

from routing.core.errors import RoutingError
from tests.conftest import REPOSITORY
from tests.faults import COLLECTED, HEADING, PAGE, fault_of, rows_of, table_of, with_table

COMMITTED = (REPOSITORY / PAGE).read_text()
HOW = {"how": "os.fsync raises", "tries": 2, "outcome": "exit 4"}


def test_every_row_of_the_page_is_a_mark_and_every_mark_a_row(request):
    """Of part of the suite, every mark collected is a row."""
    collected = request.config.stash[COLLECTED]
    marked = {path for path in (REPOSITORY / "tests").rglob("test_*.py") if "mark.fault(" in path.read_text()}
    rows, committed = rows_of(collected.faults), table_of(COMMITTED)
    if marked - {request.path} <= collected.files:
        assert committed == rows, "make docs writes the table"
    else:
        assert set(rows) <= set(committed), "make docs writes the table"


def test_a_table_is_replaced_and_the_words_around_it_stay():
    page = "\n".join(("# Faults", "", *HEADING, "| old | row |", "", "After.", "", "The end.", ""))
    assert table_of(page) == ["| old | row |"]
    written = with_table(page, ["| new | row |", "| and | one |"])
    assert written.splitlines() == ["# Faults", "", *HEADING, "| new | row |", "| and | one |", "", "After.", "", "The end."]


SUITE = """
import pytest

@pytest.mark.fault("a full disk", how="os.fsync raises", tries=1_200, outcome="exit 4")
@pytest.mark.parametrize("case", [1, 2])
def test_full(case):
    assert case

@pytest.mark.fault("a bad sector", how="a read raises", tries=1, outcome="exit 4")
@pytest.mark.parametrize("case", [0, 1])
def test_bad(case):
    assert case

@pytest.mark.fault("no power", how="the plug is pulled", tries=1, outcome="nothing")
def test_power():
    pytest.skip("no plug")
"""


def _run_suite(folder, text, *flags):
    """A suite of its own, on a page with one stale row, by two processes."""
    (folder / "docs").mkdir()
    (folder / PAGE).write_text("\n".join((*HEADING, "| stale |", "", "")))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = fault\n")
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.faults", "-p", "no:cacheprovider", *flags]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_row_is_written_where_every_case_passed_and_any_other_is_named(tmp_path):
    done = _run_suite(tmp_path, SUITE, "-n", "2", "--write-faults")
    written = "| a full disk | os.fsync raises | 1,200 | exit 4 | [test_it](../test_it.py) |"
    assert table_of((tmp_path / PAGE).read_text()) == [written], done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("no row")] == [
        "no row, its test did not pass: a bad sector",
        "no row, its test did not pass: no power",
    ]


def test_two_tests_do_not_share_a_row(tmp_path):
    done = _run_suite(tmp_path, SUITE.replace('"no power"', '"a full disk"'))
    assert "'a full disk' has its row from test_it.py already" in done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.fault("a full disk", how="x", tries=1),
        pytest.mark.fault("a full disk", how="x", tries="1", outcome="x"),
        pytest.mark.fault("a full disk", how="x", tries=0, outcome="x"),
        pytest.mark.fault("a | b", how="x", tries=1, outcome="x"),
        pytest.mark.fault("a full disk", how="", tries=1, outcome="x"),
        pytest.mark.fault(how="x", tries=1, outcome="x"),
        pytest.mark.fault("a", "b", how="x", tries=1, outcome="x"),
        pytest.mark.fault("a full disk", how="x", tries=1, outcome="x", test="x"),
    ],
)
def test_a_mark_that_is_no_row_is_refused_with_its_test(request, mark):
    with pytest.raises(pytest.UsageError, match=r"test_reliability\.py::.*: a fault's mark is one text"):
        fault_of(request.node, mark.mark)
    assert fault_of(request.node, pytest.mark.fault("a full disk", **HOW).mark).tries == 2


def test_the_page_lists_every_exit_code():
    listed = re.findall(r"^\| (\d+) \|", COMMITTED, re.MULTILINE)
    assert listed == ["0", *(str(one.exit_code) for one in RoutingError.__subclasses__()), "130"]


def test_every_link_of_the_page_leads_somewhere():
    targets = set(re.findall(r"\]\(([^)#]+)\)", COMMITTED))
    assert [target for target in sorted(targets) if not (REPOSITORY / "docs" / target).exists()] == []
