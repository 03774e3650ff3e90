"""When a table is refreshed, a person's comments stay beside what they were written about, and none is lost."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.allowance import entries_hash
from routing.core.errors import InputError
from routing.store.allowances import parse_table, read_table, rewrite_table, table_text, write_table
from routing.store.yaml_comments import carry_comments
from tests.store.test_allowances import _table


def _carried(old, new, *but):
    return carry_comments(old, new, where="old.yaml", but=but)


def _raised(table, allowance):
    entries = (replace(table.entries[0], allowance=Decimal(allowance)), *table.entries[1:])
    return replace(table, entries=entries, content_hash=entries_hash(table.model, table.placement, entries, table.generated))


def test_a_refreshed_table_keeps_comments_above_and_beside(tmp_path):
    path = tmp_path / "allowances.yaml"
    write_table(path, _table())
    text = path.read_text().replace("\n- ep: 4", "\n# seen in production\n- ep: 4", 1)
    path.write_text(text.replace("  allowance: 1.4", "  allowance: 1.4   # agreed in May"))
    fresh = _raised(_table(), "1.5")
    rewrite_table(path, fresh)
    assert read_table(path) == fresh
    written = path.read_text()
    assert "\n# seen in production\n- ep: 4\n" in written
    assert "\n  allowance: 1.5  # agreed in May\n" in written
    assert written.replace("# seen in production\n", "").replace("  # agreed in May", "") == table_text(fresh)


def test_comments_stay_with_their_entry_when_another_is_added_before_it(tmp_path):
    path = tmp_path / "allowances.yaml"
    write_table(path, _table([("1.6", 4)]))
    path.write_text(path.read_text().replace("- ep: 4", "# four\n- ep: 4 # beside"))
    rewrite_table(path, _table([("1.4", 2), ("1.6", 4)]))
    assert "\n# four\n- ep: 4  # beside\n" in path.read_text()
    assert path.read_text().count("#") == table_text(_table()).count("#") + 2


def test_a_comment_of_what_is_gone_stands_above_what_held_it(tmp_path):
    path = tmp_path / "allowances.yaml"
    write_table(path, _table())
    path.write_text(path.read_text().replace("- ep: 4", "# four\n- ep: 4 # beside"))
    rewrite_table(path, _table([("1.4", 2)]))
    assert "\n# four\n# beside\nentries:\n- ep: 2\n" in path.read_text()


def test_a_table_without_comments_is_written_as_a_new_one(tmp_path):
    path = tmp_path / "allowances.yaml"
    rewrite_table(path, _table())
    assert path.read_text() == table_text(_table())
    for table in (_table(), _table([("1.5", 2)]), _table(layer=7)):
        rewrite_table(path, table)
        assert path.read_text() == table_text(table)


def test_the_head_of_the_file_says_who_wrote_it_now(tmp_path):
    path = tmp_path / "allowances.yaml"
    measured = _table()
    entries = tuple(replace(entry, status="published") for entry in measured.entries)
    write_table(
        path,
        replace(measured, entries=entries, content_hash=entries_hash(measured.model, "contiguous", entries, measured.generated)),
    )
    assert "published figures" in path.read_text().splitlines()[1]
    path.write_text(f"# ours\n{path.read_text()}")
    rewrite_table(path, measured)
    head = path.read_text().splitlines()
    assert "published" not in head[1]
    assert "# ours" in head[:5]
    assert sum(line.startswith("#") for line in head) == 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("# top\na: 1\n", "a: 2\n", "# top\na: 2\n"),
        ("a: 1\n# end", "a: 2\n", "a: 2\n# end\n"),
        ("a: 1 # x\nb: 2\n", "b: 3\na: 4\n", "b: 3\na: 4  # x\n"),
        ("a: 1\nb: 2 # x\n", "a: 1\n", "# x\na: 1\n"),
        ("a:\n  # deep\n  b: 1\n", "a:\n    b: 1\n", "a:\n    # deep\n    b: 1\n"),
        ("a:\n- 1\n# two\n- 2\n", "a:\n- 3\n- 4\n", "a:\n- 3\n# two\n- 4\n"),
        ("# ours\n# theirs\na: 1\n", "a: 1\n", "# theirs\na: 1\n"),
        ("a: [1,  # one\n  2]\nb: 1\n", "a: [1, 2]\nb: 1\n", "a: [1, 2]  # one\nb: 1\n"),
    ],
)
def test_where_a_comment_goes(old, new, expected):
    assert _carried(old, new, "# ours") == expected


@pytest.mark.parametrize("value", ['"a # b"', "'a # b'", "a#b", "|\n  # text\n  more"])
def test_a_hash_inside_a_value_is_no_comment(value):
    assert _carried(f"a: {value}\nb: 1\n", "a: 1\nb: 1\n") == "a: 1\nb: 1\n"


def test_a_file_that_is_no_yaml_is_not_replaced(tmp_path):
    path = tmp_path / "allowances.yaml"
    path.write_text("a: [1\n")
    with pytest.raises(InputError, match="not YAML"):
        rewrite_table(path, _table())
    assert path.read_text() == "a: [1\n"


@settings(max_examples=20)
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=6), refreshed=st.sampled_from(("1.4", "1.5")))
def test_no_comment_is_ever_lost(places, refreshed):
    lines = table_text(_table()).splitlines()[3:]
    for number, (place, is_beside) in enumerate(places):
        at = place % len(lines)
        if is_beside and "#" not in lines[at]:
            lines[at] += f" # note {number}"
        else:
            lines.insert(at, f"# note {number}")
    fresh = _raised(_table([("1.4", 2), ("1.6", 4), ("1.6", 8)]), refreshed)
    text = _carried("\n".join(lines) + "\n", table_text(fresh))
    assert sorted(re.findall(r"# note \d", text)) == [f"# note {number}" for number in range(len(places))]
    assert parse_table(text, where="new.yaml") == fresh
