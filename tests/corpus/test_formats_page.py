"""docs/formats.md names everything that a manifest of ours may name, and nothing else."""

import re
from pathlib import Path

import pytest

from routing.corpus.formats.registry import FORMATS
from routing.corpus.normalise import RULES
from routing.corpus.sequences import REFUSAL_REASONS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("heading", "names"), [("Formats", FORMATS), ("Rules", RULES), ("Refusals", REFUSAL_REASONS)])
def test_each_table_has_one_row_for_each_name(heading, names):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `([a-z0-9_-]+)` \|", section, re.MULTILINE)) == sorted(names)


def test_formats_stand_in_the_order_in_which_they_are_tried():
    section = PAGE.split("\n## Formats\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z0-9_-]+)` \|", section, re.MULTILINE) == list(FORMATS)
