"""docs/recorded.md names every fault and repair that a manifest may name, and nothing else."""

import re

import pytest

from routing.recorded.faults import FAULTS
from routing.recorded.routes import REPAIRS
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "recorded.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("heading", "names"), [("Faults", FAULTS), ("Repairs", REPAIRS)])
def test_each_table_has_one_row_for_each_name(heading, names):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `([a-z0-9_-]+)` \|", section, re.MULTILINE)) == sorted(names)
