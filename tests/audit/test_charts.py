"""A chart is one picture with words, fetches nothing, and writes names as text."""

from decimal import Decimal
from xml.etree import ElementTree

import pytest

from routing.audit.charts import Mark, distribution_chart, layer_chart, size_chart, statistics_chart
from routing.audit.drawing import accessible
from routing.audit.grids import Bar, Cell, bar_chart, cell_chart

EVIL = "<script>alert(1)</script>\" onload='x' &"


def _drawings(name):
    marks = [Mark(name=name, at=layer, imbalance=1.1 + layer / 10) for layer in (3, 4, 7)]
    yield layer_chart(marks, names=[name], allowance=Decimal("1.9"), top=2.0)
    sizes = [Mark(name=name, at=2_000, imbalance=1.5), Mark(name=name, at=200_000, imbalance=1.2)]
    yield size_chart(sizes, names=[name], allowances={2_000: Decimal("1.8")}, uniform={2_000: 1.1, 200_000: 1.01}, top=2.0)
    figures = [Mark(name=name, at=at, imbalance=1.2) for at in ("worst", "mean", "pooled")]
    yield statistics_chart(figures, names=[name], allowance=None, top=2.0)
    yield distribution_chart({name: (1.5, 1.2, 1.3)}, names=[name], allowance=Decimal("1.9"), top=2.0)
    yield cell_chart([Cell(column=2, layer=0, value=1.2), Cell(column=2, layer=1, value=1.4, is_worst=True)], column=name, top=2)
    yield bar_chart([Bar(bar=name, term=name, num_bytes=10**9)], terms=[name], peak_bytes=2 * 10**9)


@pytest.mark.parametrize("place", range(6))
def test_a_drawing_is_one_named_picture_without_an_address(place):
    drawn = accessible(list(_drawings("base"))[place], name="one", title="By layer & more", description="All <even>.")
    root = ElementTree.fromstring(drawn)
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "one-title one-desc")
    assert (root.find("title").text, root.find("desc").text) == ("By layer & more", "All <even>.")
    assert "://" not in drawn
    assert not {one.tag for one in root.iter()} & {"script", "image", "a", "foreignObject", "style"}


def test_names_are_text_in_the_drawing():
    for drawn in _drawings(EVIL):
        root = ElementTree.fromstring(drawn)
        assert not [one for one in root.iter() if one.tag.endswith("script")]
        assert "<script" not in drawn


def test_colours_follow_the_page():
    drawn = next(_drawings("base"))
    assert "var(--series-1)" in drawn
    assert "var(--allowance)" in drawn
    assert "currentColor" in drawn


def test_the_same_numbers_are_drawn_the_same():
    assert list(_drawings("base")) == list(_drawings("base"))


def test_a_cell_says_its_number_and_the_worst_is_framed():
    drawn = list(_drawings("base"))[4]
    assert ">1.20<" in drawn
    assert ">1.40<" in drawn
    assert drawn.count('stroke="var(--allowance)"') == 1


def test_an_axis_names_the_sizes_as_the_tables_do():
    drawn = list(_drawings("base"))[1]
    assert ">2k<" in drawn
    assert ">200k<" in drawn


@pytest.mark.fault(
    "a control character in a label that is drawn",
    how="six charts whose names hold an escape, NUL and U+FFFE",
    tries=6,
    outcome="drawn as its escape; vl-convert would end the process",
)
def test_a_character_that_no_drawing_can_hold_is_drawn_as_its_escape():
    drawings = list(_drawings("a\x1b\x00\ufffe"))
    for drawn in drawings:
        ElementTree.fromstring(drawn)
    assert any(r"a\x1b\x00\ufffe" in drawn for drawn in drawings)
