"""Whatever bytes a reader is given, it refuses in one line of its own or reads what an independent reader reads."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import fuzz_inputs
from pipelines.odd.accidents import ODD, mutated
from pipelines.odd.oracles import strict_values
from pipelines.odd.readers import READERS, Reader, WordBytes, outcome
from pipelines.soak_inputs import soak
from routing.core.errors import InputError
from routing.corpus.load import load_corpus
from tests.conftest import REPOSITORY

KEPT = REPOSITORY / "tests" / "odd"
EXAMPLES = 40


@pytest.mark.fault(
    "odd files: accidents of bytes, lines, keys, numbers and encodings",
    how=f"{EXAMPLES} mutated files for each of {len(READERS)} readers, drawn by hypothesis; 100,000 by `make soak`",
    tries=EXAMPLES * len(READERS),
    outcome="refused in one line, or read as an independent reader reads it",
)
@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES, derandomize=True)
@given(data=st.data())
def test_a_mutated_file_is_refused_in_one_line_or_read_as_it_stands(name, data, tmp_path):
    reader = READERS[name]
    raw = mutated(data.draw(st.randoms(use_true_random=False)), data.draw(st.sampled_from(reader.samples)))
    outcome(reader, raw, tmp_path / "input")


@pytest.mark.parametrize("name", READERS)
def test_a_sample_is_read(name, tmp_path):
    """Or the mutated ones would be refused for another reason than their accident."""
    for raw in READERS[name].samples:
        assert outcome(READERS[name], raw, tmp_path / "input") == "read"


LINES = st.lists(
    st.sampled_from(
        [
            *(b'{"input_ids": [1, 2]}', b'{"input_ids": [3]}', b'{"input_ids": [true]}', b'{"input_ids": [1.0]}', b"", b"  \t"),
            *(b'\xef\xbb\xbf{"input_ids": [4]}', b'{"input_ids": [5]}\r', b'{"text": "\xe2\x80\xa8", "input_ids": [6]}', b"[]"),
            *(b'{"a": "\\ud800", "input_ids": [7]}', b'{"a": "\\u0000", "input_ids": [8]}', b'{"a": "\xff", "input_ids": [9]}'),
            *(b'{"a": NaN, "input_ids": [10]}', b'{"input_ids": [11], "input_ids": [12]}'),
            *(b'{"input_ids": [' + b"7" * 5_000 + b"]}", b'{"a": ' + b"[" * 3_000 + b"]" * 3_000 + b', "input_ids": [13]}'),
            *(b'{"input_ids": [2147483648]}', b'{"input_ids": []}'),
            *(b'{"input_ids": [14, 15], "attention_mask": [0, 1]}', b'{"input_ids": [16]', b"null", b'{"input_ids": null}'),
        ]
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.fault(
    "malformed JSON Lines: BOM, CRLF, U+2028, lone surrogates, NUL, bad UTF-8, NaN, duplicate keys, deep nesting, 5,000 digits",
    how="200 files drawn from such lines and sound ones",
    tries=200,
    outcome="stopped with the number of the first bad line, or exactly the rows that the json module reads",
)
@settings(max_examples=200)
@given(lines=LINES)
def test_the_first_bad_line_is_named_or_every_row_is_read(lines, tmp_path):
    path = tmp_path / "a.jsonl"
    raw = b'{"input_ids": [0]}\n' + b"\n".join(lines)
    path.write_bytes(raw)
    bad = [number for number, line in enumerate(lines, start=2) if line.strip() and not _is_sound(line)]
    assert outcome(READERS["token ids"], raw, path) == ("refused" if bad else "read")
    if bad:
        with pytest.raises(InputError, match=rf"^{re.escape(str(path))}:{bad[0]}: "):
            load_corpus([path], tokenizer=WordBytes(), format="token-ids")


def _is_sound(line):
    """By what the line was written for: all but these parse."""
    marks = (b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"\xff", b"NaN", b'12]}', b"77777", b"[[[[[")
    return not any(mark in line for mark in marks) and line != b'{"input_ids": [16]'


@pytest.mark.parametrize(
    ("file", "reader", "said"),
    [
        ("column_name_no_utf8.csv", "counts", "no table of counts: 'utf-8' codec"),
        ("column_three_times.csv", "counts", "column layer is there 3 times"),
        ("tokens_that_wrap_around.csv", "counts", "unit 'u': 2305843009213693952 tokens, above 2147483647"),
        ("two_halves_of_a_character.jsonl", "guard log", None),
        ("half_a_character.jsonl", "guard log", "1: a lone surrogate in a string"),
        ("end_of_line_in_a_key.json", "placement", r"layers[0].ra\nks: no such field"),
        ("next_line_in_a_string.jsonl", "guard log", "1: U+0085, an end of line to YAML 1.1 alone"),
        ("nul_in_a_path.yaml", "plan", r"8: runs[0].corpus[0]: 'data/\x00.jsonl' is no printable text"),
    ],
)
def test_an_odd_file_that_was_found_stays_right(file, reader, said, tmp_path):
    raw = (KEPT / file).read_bytes()
    if said is None:
        assert outcome(READERS[reader], raw, tmp_path / file) == "read"
        return
    assert outcome(READERS[reader], raw, tmp_path / file) == "refused"
    with pytest.raises(InputError) as caught:
        READERS[reader].read(tmp_path / file)
    assert said in str(caught.value)


@pytest.mark.fault(
    "real trajectory files, cut and mangled",
    how="two rows of each of the real files, 20 accidents each; where the files are",
    tries=260,
    outcome="refused in one line, or every row kept or refused with a reason",
)
def test_a_real_file_cut_and_mangled_is_refused_or_accounted_for(shared_trajectories, tmp_path):
    draw = random.Random(0)
    found = Counter()
    for path in sorted(shared_trajectories.glob("*_*.json*")):
        raw = _two_rows(path)
        reader = Reader(samples=(raw,), read=_read, is_right=_is_accounted)
        assert outcome(reader, raw, tmp_path / path.name) == "read"
        for _ in range(20):
            found[outcome(reader, mutated(draw, raw), tmp_path / path.name)] += 1
    assert found["read"] > 10
    assert found["refused"] > 10


def _two_rows(path):
    if path.suffix == ".jsonl":
        return b"".join(path.read_bytes().splitlines(keepends=True)[:2])
    body = json.loads(path.read_bytes())
    few = body[:2] if isinstance(body, list) else {**body, "simulations": body["simulations"][:2], "tasks": []}
    return json.dumps(few, indent=1).encode()


def _read(path):
    return load_corpus([path], tokenizer=WordBytes())


def _is_accounted(raw, corpus):
    (file,) = corpus.files
    rows = [value for _, value in strict_values(raw)]
    if file.format == "tau2":
        rows = rows[0]["simulations"]
    return len(rows) == file.rows == file.kept + file.refused == len(corpus.trajectories) + len(corpus.refusals)


def test_the_soak_is_the_same_for_the_same_seed_and_counts_every_input(tmp_path):
    some = {name: READERS[name] for name in ("token ids", "peaks")}
    (first, fault), (again, _) = (soak(some, num_inputs=60, seed=3, folder=tmp_path) for _ in range(2))
    assert fault is None
    assert first == again
    assert {name: counts.total() for name, counts in first.items()} == {"token ids": 30, "peaks": 30}
    assert sum(counts["read"] for counts in first.values()) > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"read": lambda path: 1 // 0}, "ZeroDivisionError"),
        ({"is_right": lambda raw, answer: False}, "read otherwise than the bytes say"),
    ],
)
def test_the_soak_ends_at_a_traceback_and_at_a_wrong_answer(tmp_path, change, said):
    broken = {"peaks": replace(READERS["peaks"], **change)}
    counts, fault = soak(broken, num_inputs=100, seed=0, folder=tmp_path)
    assert counts["peaks"]["fault"] == 1
    assert said in fault


def test_the_soak_prints_a_line_a_reader():
    command = [sys.executable, "-m", "pipelines.soak_inputs", "--inputs", "20", "--seed", "7"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line[:16].strip() for line in lines] == [*READERS, "all"]
    assert "20 inputs, seed 7" in lines[-1]


def test_no_accident_is_listed_twice():
    assert len(set(ODD)) == len(ODD)


@pytest.mark.parametrize(
    ("argv", "said"), [([], "name a reader"), (["nothing"], "name a reader"), (["wave"], "pip install atheris")]
)
def test_the_fuzzer_says_what_it_lacks(monkeypatch, argv, said):
    monkeypatch.setattr(sys, "argv", ["fuzz_inputs", *argv])
    monkeypatch.setitem(sys.modules, "atheris", None)
    with pytest.raises(SystemExit, match=said):
        fuzz_inputs.main()


def test_the_fuzzer_knows_readers_that_there_are():
    assert set(fuzz_inputs.TARGETS.values()) <= set(READERS)
