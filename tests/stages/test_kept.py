"""An answer is taken from a run's cache only where it is whole, of these counts, this program and this question."""

import json
import os
import shutil

import pyarrow.parquet as pq
import pytest

from routing.core.errors import DamagedDataError, StorageError
from routing.core.placement import STRIDED
from routing.stages import kept
from routing.stages.kept import kept_imbalance_rows
from routing.store import rollup
from routing.store.content import content_hash
from routing.store.run import open_run, writing
from tests.stores import write_tiny_run

ASKED = {"eps": [2], "batch_sizes": [10, 20]}


def _write(folder, rows=(6, 4)):
    loads = {(segment, 0): [rows[0], 0, rows[1], 0] for segment in range(2)}
    write_tiny_run(folder, paths=[[0], [1]], segment_tokens=[10, 10], loads=loads, num_experts=4, top_k=1)
    return folder


@pytest.fixture
def folder(tmp_path):
    return _write(tmp_path / "run")


@pytest.fixture
def counted(monkeypatch):
    """How often rows were counted, as a list that grows."""
    calls = []
    count = kept.imbalance_rows
    monkeypatch.setattr(kept, "imbalance_rows", lambda run, **asked: calls.append(asked) or count(run, **asked))
    return calls


def _ask(folder, **asked):
    rows, cautions = kept_imbalance_rows(open_run(folder), **{**ASKED, **asked})
    return [row["worst_imbalance"] for row in rows], [one.code for one in cautions]


def _answer_file(folder):
    (file,) = (folder / "cache").glob("imbalance-*.json")
    return file


def test_a_question_asked_again_is_answered_alike_and_not_counted_again(folder, counted):
    first = _ask(folder)
    assert first == ([1.2, 1.2], ["one_batch"])  # rank 0 of 2 has 6 of 10 rows, in both sizes
    assert _ask(folder) == first
    assert len(counted) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"eps": [4]},
        {"batch_sizes": [10]},
        {"batch_sizes": [20, 10]},
        {"view": "logical"},
        {"order": 7},
        {"by_layer": True},
        {"placement": STRIDED},
    ],
)
def test_another_question_is_counted(folder, counted, asked):
    _ask(folder)
    _ask(folder, **asked)
    assert len(counted) == 2


def test_another_program_counts_again_and_keeps_its_own(folder, counted, monkeypatch):
    _ask(folder)
    old = _answer_file(folder).name
    monkeypatch.setattr(kept, "program_hash", lambda: "another")
    _ask(folder)
    assert len(counted) == 2
    assert _answer_file(folder).name != old


def test_other_counts_under_the_same_name_are_counted(folder, counted, tmp_path):
    _ask(folder)
    other = _write(tmp_path / "other" / "run", rows=(9, 1))
    shutil.copytree(folder / "cache", other / "cache")
    assert _ask(other)[0] == [1.8, 1.8]
    _answer_file(other).write_bytes(_answer_file(folder).read_bytes())  # another run's answer in the right place
    assert _ask(other)[0] == [1.8, 1.8]
    assert len(counted) == 3


def test_a_renamed_run_is_named_as_it_is_now(folder, tmp_path):
    _ask(folder)
    folder.rename(tmp_path / "renamed")
    rows, cautions = kept_imbalance_rows(open_run(tmp_path / "renamed"), **ASKED)
    assert {row["run"] for row in rows} == {"renamed"}
    assert cautions[0].message.startswith("renamed:")


def test_any_flipped_byte_of_an_answer_is_seen_and_mended(folder, counted):
    whole = _ask(folder)
    file = _answer_file(folder)
    raw = file.read_bytes()
    for place in range(0, len(raw), 37):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        assert _ask(folder) == whole
    assert _answer_file(folder).read_bytes() == raw


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": "", "kept": {}}', b"\xff\xfe", None])
def test_a_cut_or_foreign_answer_is_counted_again(folder, counted, content):
    whole = _ask(folder)
    file = _answer_file(folder)
    file.write_bytes(file.read_bytes()[:-40] if content is None else content)
    assert _ask(folder) == whole
    assert len(counted) == 2


def test_an_answer_that_is_a_link_is_neither_read_nor_followed(folder, counted, tmp_path):
    whole = _ask(folder)
    file = _answer_file(folder)
    shutil.move(file, tmp_path / "elsewhere.json")
    file.symlink_to(tmp_path / "elsewhere.json")
    before = (tmp_path / "elsewhere.json").read_bytes()
    assert _ask(folder) == whole
    assert len(counted) == 2
    assert (tmp_path / "elsewhere.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["a file stands there", "a link leads away", "no write"])
def test_where_nothing_can_be_kept_the_answer_is_the_same(folder, counted, tmp_path, monkeypatch, kind):
    if kind == "a file stands there":
        (folder / "cache").write_text("mine")
    elif kind == "a link leads away":
        (tmp_path / "away").mkdir()
        (folder / "cache").symlink_to(tmp_path / "away")
    else:
        monkeypatch.setattr(rollup, "write_bytes", _no_space)
    assert _ask(folder) == _ask(folder) == ([1.2, 1.2], ["one_batch"])
    assert len(counted) == 2
    assert list(tmp_path.glob("away/*")) == []


def _no_space(path, _content):
    raise StorageError(f"{path}: not written, no space")


def test_a_damaged_part_is_named_whatever_was_kept(folder):
    _ask(folder)
    part = folder / "loads-00000.parquet"
    raw = bytearray(part.read_bytes())
    raw[len(raw) // 2] ^= 1
    part.write_bytes(raw)
    with pytest.raises(DamagedDataError, match="loads-00000"):
        open_run(folder)


def test_parts_that_decoded_once_are_held_to_their_hash_and_not_decoded_again(folder, monkeypatch):
    _ask(folder)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *_: pytest.fail("decoded again"))
    assert open_run(folder).manifest.state == "finished"


def test_the_cache_is_no_part_of_the_run(folder):
    before = content_hash(open_run(folder))
    _ask(folder)
    run = open_run(folder)
    assert (run.notices, content_hash(run)) == ((), before)
    with writing(folder) as notices:  # as a measurement that is asked for again
        assert notices == ()
    shutil.rmtree(folder / "cache")
    assert _ask(folder)[0] == [1.2, 1.2]


def test_what_a_killed_writer_left_goes_and_what_is_not_ours_stays(folder):
    _ask(folder)
    torn = _answer_file(folder).with_name(f"{_answer_file(folder).name}.tmp-{os.getpid()}")
    torn.write_text("{")
    (folder / "cache" / "notes.txt").write_text("mine")
    _ask(folder, order=3)
    assert not torn.exists()
    assert (folder / "cache" / "notes.txt").read_text() == "mine"


def test_the_cache_stays_bounded(folder, monkeypatch):
    monkeypatch.setattr(rollup, "MAX_FILES", 3)
    for seed in range(6):
        _ask(folder, order=seed)
    orders = {json.loads(one.read_text())["kept"]["of"][1]["order"] for one in (folder / "cache").glob("imbalance-*.json")}
    assert orders == {3, 4, 5}
