"""The worked example of docs/training_loop.md runs as it stands there: measured, fitted, admitted, trained, watched."""

import json
import re

import pytest

from routing.store.allowances import read_table
from routing.store.guard_log import read_exceedances
from tests.conftest import REPOSITORY
from tests.pages import blocks_of, read_page, run_page

PAGE = "docs/training_loop.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(the folder, what the example printed); the page ends with the next table."""
    folder = tmp_path_factory.mktemp("loop")
    for name in ("data", "allowances.yaml"):
        (folder / name).symlink_to(REPOSITORY / name)
    printed = run_page("docs/training_loop.md", folder)
    kinds = [block.kind for block in blocks_of(PAGE, read_page(PAGE))]
    example = max(place for place, kind in enumerate(kinds) if kind == "python")
    return folder, printed[example]


def test_the_worked_example_trains_within_what_was_admitted(trained):
    _, out = trained
    assert re.search(r"^\d+ tokens in 275,000,000 bytes at allowance 1\.\d$", out, re.MULTILINE)
    assert re.findall(r"^step (\d): loss \d", out, re.MULTILINE) == ["0", "1", "2", "3"]
    shares = json.loads(out.splitlines()[-1].partition(": ")[2])
    assert len(shares) == 8
    assert all(1 <= share <= 2 for share in shares)


def test_the_next_table_is_not_below_what_the_guard_logged(trained):
    folder, _ = trained
    if not (folder / "runs" / "guard.jsonl").exists():
        pytest.skip("nothing was exceeded on this machine")
    seen = max(one.ratio for one in read_exceedances(folder / "runs" / "guard.jsonl"))
    (entry,) = read_table(folder / "runs" / "loop.yaml").entries
    assert entry.allowance >= seen
    assert entry.evidence.floors


def test_what_the_example_prints_as_exceeded_is_what_its_guard_logged(trained):
    folder, out = trained
    log = folder / "runs" / "guard.jsonl"
    logged = [one.sentence() for one in read_exceedances(log) if one.event == "exceeded"] if log.exists() else []
    assert [line for line in out.splitlines() if "is above the allowance" in line] == logged
