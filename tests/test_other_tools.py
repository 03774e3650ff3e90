"""The numbers of docs/other_tools.md follow from its eight tokens; the page's own run holds those that were measured."""

import re
from fractions import Fraction

import pytest

from tests.calculator import SUM, calculated
from tests.pages import read_page

TEXT = read_page("docs/other_tools.md")
ROWS = re.findall(r"^\| (.+?) \| [^|]+ \| ([\d.]+) \| ([\d. x+/()]+) \| (?:measured|published) \|$", TEXT, re.MULTILINE)
SUMS = re.findall(SUM, TEXT, re.MULTILINE)
LAYERS = [
    [tuple(map(int, pair)) for pair in re.findall(r"\((\d), (\d)\)", line)]
    for line in re.findall(r"^layer_\d = .*", TEXT, re.MULTILINE)
]


def test_the_table_of_counts_is_that_of_the_routes():
    for layer, pairs in enumerate(LAYERS):
        by_expert = [sum(expert in pair for pair in pairs) for expert in range(4)]
        by_rank = [sum(by_expert[:2]), sum(by_expert[2:])]
        first = [sum(pair[0] == expert for pair in pairs) for expert in range(4)]
        share = f"{max(by_rank)} / 8 = {max(by_rank) / 8}"
        cells = (str(layer), *(str(counts)[1:-1] for counts in (by_expert, by_rank)), share, str(first)[1:-1])
        assert f"| {' | '.join(cells)} |" in TEXT


@pytest.mark.parametrize(("tool", "shown", "by_hand"), ROWS)
def test_what_a_tool_shows_is_worked_out_as_far_as_it_is_shown(tool, shown, by_hand):
    places = len(shown.partition(".")[2])
    assert abs(calculated(by_hand) - Fraction(shown)) <= Fraction(1, 2 * 10**places)


@pytest.mark.parametrize(("by_hand", "shown"), SUMS)
def test_every_sum_of_the_page_is_right(by_hand, shown):
    assert calculated(by_hand) == Fraction(shown)


def test_every_row_and_sum_was_found():
    assert (len(ROWS), len(SUMS), [len(pairs) for pairs in LAYERS]) == (11, 2, [8, 8])
