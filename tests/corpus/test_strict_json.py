"""JSON from other people's machines is read whole or refused with its line; nothing is guessed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.errors import InputError, StorageError
from routing.corpus import strict_json
from routing.corpus.strict_json import BadLines, JsonFaultError, escape, parse_json, printable, read_json_file, read_json_lines


def rows_of(path, *, skip=False):
    return list(read_json_lines(path, BadLines(skip=skip), name="f.jsonl"))


@pytest.mark.fault(
    "no plain JSON: NaN, 1e999, duplicate keys, lone surrogates, NUL, bad UTF-8, nesting, 5,000 digits, a cut",
    how="17 pieces, each with one of these",
    tries=17,
    outcome="refused by name",
)
@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "beyond 64-bit"),
        (b'{"a": 1, "a": 2}', "same key twice"),
        (b'{"a": {"b": 1, "b": 1}}', "same key twice"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": "\\udc00 \\ud83d\\ude00"}', "lone surrogate"),
        (b'{"\\ud800": 1}', "lone surrogate"),
        (b'{"a": "x\\u0000y"}', "NUL"),
        (b'{"a": "x\x00y"}', "Invalid control character"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a": ' + b"7" * 5_000 + b"}", "integer of more than"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1', "Expecting"),
        (b'{"a": 1} x', "Extra data"),
        (b"{'a': 1}", "Expecting"),
    ],
)
def test_what_is_no_plain_json_is_refused_by_name(raw, what):
    with pytest.raises(JsonFaultError, match=what):
        parse_json(raw)


def test_a_surrogate_pair_is_one_character():
    assert parse_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_python_writes_is_read_back_unless_it_holds_nul(value):
    text = json.dumps(value)
    if "\\u0000" in text.replace("\\\\", ""):
        with pytest.raises(JsonFaultError):
            parse_json(text.encode())
    else:
        assert parse_json(text.encode()) == value


def test_faults_that_the_parser_cannot_place_are_placed_by_line():
    text = '{\n "a": "NaN, {\\"a\\": 1}",\n "b": {"a": 1},\n "a": 2\n}'
    with pytest.raises(JsonFaultError) as caught:
        parse_json(text.encode())
    assert caught.value.line == 4
    with pytest.raises(JsonFaultError) as caught:
        parse_json(b'{"a": "NaN",\n\n "b": [1.5, NaN]}')
    assert caught.value.line == 3


def test_an_excerpt_is_one_line_of_at_most_sixty_printable_characters():
    with pytest.raises(JsonFaultError) as caught:
        parse_json('{"a": "' + "\N{SNOWMAN}\t" * 200 + '"}')
    excerpt = caught.value.excerpt
    assert len(excerpt) <= 60
    assert excerpt.isascii()
    assert excerpt.isprintable()
    assert escape("short") == "short"
    assert escape("x" * 61) == "x" * 57 + "..."


def test_file_names_that_cannot_be_printed_are_escaped():
    assert printable("corpus é.jsonl") == "corpus é.jsonl"
    assert printable("a\nb") == "a\\nb"
    assert printable("bad\udcff") == "bad\\udcff"


@pytest.mark.fault(
    "U+2028 and U+0085 inside a string, CRLF, blank lines",
    how="one file that holds them",
    tries=1,
    outcome="read as the two rows it has",
)
def test_lines_are_split_at_line_feeds_only(write):
    raw = '{"a": "x\u2028y\u0085z\x0c"}\r\n\r\n  \n{"a": 2}'.replace("\x0c", "").encode()
    assert rows_of(write("f.jsonl", raw)) == [(0, {"a": "x\u2028y\u0085z"}), (1, {"a": 2})]


@pytest.mark.fault(
    "a byte order mark",
    how="in front of JSON Lines and of JSON",
    tries=2,
    outcome="read as if it were not there",
)
def test_a_byte_order_mark_opens_a_file_and_is_dropped(write):
    assert rows_of(write("f.jsonl", b'\xef\xbb\xbf{"a": 1}\n')) == [(0, {"a": 1})]
    assert read_json_file(write("f.json", b"\xef\xbb\xbf[1]"), name="f.json") == [1]


def test_a_bad_line_stops_with_its_number_counting_blank_lines(write):
    path = write("f.jsonl", '{"a": 1}\n\n{"a": \n{"a": 3}\n')
    with pytest.raises(InputError, match=r"^f\.jsonl:3: Expecting value; near '\{\"a\":'; mend it or pass --on-bad-line skip$"):
        rows_of(path)


def test_a_skipped_line_is_counted_and_keeps_its_row_number(write):
    bad_lines = BadLines(skip=True)
    path = write("f.jsonl", '{"a": 1}\nnonsense\n{"a": 3}\n')
    assert list(read_json_lines(path, bad_lines, name="f.jsonl")) == [(0, {"a": 1}), (2, {"a": 3})]
    assert bad_lines.num_skipped == 1


@pytest.mark.fault(
    "a file full of bad lines under --on-bad-line skip",
    how="one line more than the cap (1,000, lowered for the test)",
    tries=1,
    outcome="stopped: damaged, or of another format",
)
def test_skipping_ends_at_the_cap(write, monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_SKIPPED_LINES", 3)
    assert rows_of(write("f.jsonl", '{"a": 1}\n' + "x\n" * 3), skip=True) == [(0, {"a": 1})]
    with pytest.raises(InputError, match=r"f\.jsonl:5: .*more than 3 bad lines"):
        rows_of(write("f.jsonl", '{"a": 1}\n' + "x\n" * 4), skip=True)


@pytest.mark.fault(
    "a huge line",
    how="a line above the limit (256 MiB, lowered for the test), stopped at and skipped",
    tries=2,
    outcome="named with its number, never held whole; the next line is read",
)
def test_a_line_above_the_limit_is_a_bad_line_and_the_next_one_is_read(write, monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_LINE_BYTES", 20)
    path = write("f.jsonl", '{"a": 1}\n{"a": "' + "x" * 100 + '"}\n{"a": 3}\n')
    with pytest.raises(InputError, match=r"f\.jsonl:2: a line of more than 20 bytes"):
        rows_of(path)
    assert [value for _, value in rows_of(path, skip=True)] == [{"a": 1}, {"a": 3}]


def test_a_line_at_the_limit_is_read(write, monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_LINE_BYTES", 9)
    assert rows_of(write("f.jsonl", '{"a": 12}\n{"a": 13}')) == [(0, {"a": 12}), (1, {"a": 13})]


def test_a_cut_json_file_is_refused_with_its_line(write):
    path = write("f.json", '[\n {"a": 1},\n {"a": \n')
    with pytest.raises(InputError, match=r"^f\.json:4: Expecting value; near "):
        read_json_file(path, name="f.json")


def test_a_json_file_above_the_limit_is_refused_before_it_is_read(write, monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_JSON_FILE_BYTES", 3)
    with pytest.raises(InputError, match="one JSON value of 4 bytes; write it as JSON Lines"):
        read_json_file(write("f.json", "1234"), name="f.json")


def test_a_failing_disk_is_no_fault_of_the_input(tmp_path):
    with pytest.raises(StorageError, match=r"f\.jsonl: cannot read: No such file"):
        rows_of(tmp_path / "absent")
    with pytest.raises(StorageError, match=r"f\.json: cannot read: Is a directory"):
        read_json_file(tmp_path, name="f.json")
