"""A damaged run is repaired by moving what is damaged aside: the next measurement makes just that again, to the same counts."""

import json
import os
import socket
from dataclasses import replace

import pytest

from routing.core.errors import DamagedDataError, InputError, StorageError
from routing.core.worker import Worker
from routing.stages import begin
from routing.stages.import_counts import CountsRequest, import_counts
from routing.stages.measure import measure
from routing.stages.repair import repair
from routing.stages.share import measure_share
from routing.store.lock import LOCK_NAME, writer_lock
from routing.store.manifest import decode, encode
from routing.store.run import open_run, read_manifest, require_finished
from routing.store.worker_parts import record_path
from tests.stages.workers import measure_three, measured_in_parts
from tests.stores import write_tiny_run


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 700)


@pytest.fixture(scope="module")
def measured(policy_folder, corpus_file, tmp_path_factory):
    """The files of a run that nothing happened to, by name."""
    out = measured_in_parts(policy_folder, corpus_file, tmp_path_factory.mktemp("measured") / "run", tokens=700)
    return {one.name: one.read_bytes() for one in out.iterdir()}


@pytest.fixture
def request_of(measured, request_for, tmp_path):
    """The request that made a copy of that run."""
    (tmp_path / "run").mkdir()
    for name, content in measured.items():
        (tmp_path / "run" / name).write_bytes(content)
    return request_for(tmp_path / "run")


def _flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _told(answer):
    return {one["file"]: (one["fault"], one["moved_to"]) for one in answer.body["damaged"]}


def _files(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


DAMAGED = {
    "loads-00001.parquet": ("altered, its sha256 is not the manifest's", "damaged/loads-00001.parquet"),
    "loads-00003.parquet": ("in the manifest, and not on disk", None),
    "segments-00000.parquet": ("0 bytes, the manifest says", "damaged/segments-00000.parquet"),
}


@pytest.fixture
def damaged(request_of):
    """One part with a flipped bit, one gone, one emptied."""
    _flip(request_of.out / "loads-00001.parquet")
    (request_of.out / "loads-00003.parquet").unlink()
    (request_of.out / "segments-00000.parquet").write_bytes(b"")
    return request_of


@pytest.mark.fault(
    "a damaged run, repaired and gone on with",
    how="one part with a flipped bit, one deleted, one emptied",
    tries=1,
    outcome="moved to RUN/damaged; the next measure makes those three again, the content hash of an uninterrupted run",
)
def test_a_repaired_run_is_measured_where_it_was_damaged_and_nowhere_else(damaged, listener, measured):
    whole = decode(measured["manifest.json"], where="here")
    before = {name: path.stat().st_mtime_ns for name in DAMAGED for path in [damaged.out / name] if path.exists()}
    kept = {one.name: one.stat().st_mtime_ns for one in damaged.out.glob("*.parquet") if one.name not in DAMAGED}
    told = _told(repair(damaged.out, dry_run=False))
    assert told.keys() == DAMAGED.keys()
    for name, (fault, moved_to) in DAMAGED.items():
        assert told[name][0].startswith(fault)
        assert told[name][1] == moved_to
        assert moved_to is None or (damaged.out / moved_to).stat().st_mtime_ns == before[name]
    assert read_manifest(damaged.out).state == "measuring"
    with pytest.raises(InputError, match="run the same routing measure again"):
        require_finished(open_run(damaged.out))
    measure(damaged, listener)
    run = open_run(damaged.out)
    assert (run.manifest.state, run.manifest.content_hash) == ("finished", whole.content_hash)
    assert {name: (damaged.out / name).stat().st_mtime_ns for name in kept} == kept
    assert {name: content for name, content in _files(damaged.out).items() if name in DAMAGED} == {
        name: measured[name] for name in DAMAGED
    }
    assert not any("content hash" in note for note in listener.notes)


def test_workers_go_on_with_a_repaired_run_too(damaged, listener, measured):
    repair(damaged.out, dry_run=False)
    for index in range(2):
        measure_share(replace(damaged, worker=Worker(index=index, count=2)), listener)
    assert read_manifest(damaged.out).content_hash == decode(measured["manifest.json"], where="here").content_hash


def test_a_dry_run_says_the_same_and_touches_nothing(damaged):
    before = _files(damaged.out)
    answer = repair(damaged.out, dry_run=True)
    assert {name: fault for name, (fault, _) in _told(answer).items()}.keys() == DAMAGED.keys()
    assert {moved_to for _, moved_to in _told(answer).values()} == {None}
    assert answer.body["next_step"] == f"routing repair {damaged.out}"
    assert _files(damaged.out) == before
    assert sorted(os.listdir(damaged.out)) == sorted(before)


def test_a_whole_run_is_left_as_it_is(request_of, measured):
    answer = repair(request_of.out, dry_run=False)
    told = [answer.body[name] for name in ("damaged", "state", "next_step")]
    assert told == [[], "finished", "nothing: the run is whole"]
    assert _files(request_of.out) == measured


def test_a_second_damage_of_a_part_does_not_replace_the_first(request_of, listener):
    part = request_of.out / "loads-00000.parquet"
    for number in range(2):
        part.write_bytes(b"damage %d" % number)
        repair(request_of.out, dry_run=False)
        measure(request_of, listener)
    kept = [(request_of.out / "damaged" / name).read_bytes() for name in ("loads-00000.parquet", "loads-00000.parquet.1")]
    assert kept == [b"damage 0", b"damage 1"]


def test_parts_that_come_out_otherwise_than_before_are_said(damaged, listener):
    """As after an update of torch: the tables fitted from the run rest on counts that are no more."""
    path = damaged.out / "manifest.json"
    path.write_bytes(encode(replace(decode(path.read_bytes(), where="here"), content_hash="0" * 64)))
    repair(damaged.out, dry_run=False)
    measure(damaged, listener)
    assert any("hold other rows than the damaged ones did (content hash 000000000000, now" in note for note in listener.notes)


@pytest.mark.parametrize("how", ["gone", "edited", "empty"])
@pytest.mark.fault(
    "a run whose manifest is damaged, to be repaired",
    how="the manifest deleted, edited, emptied",
    tries=3,
    outcome="exit 3, says that only the manifest knows the parts and what to do; nothing moved",
)
def test_a_run_without_its_manifest_can_not_be_repaired(request_of, how):
    path = request_of.out / "manifest.json"
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else path.read_bytes().replace(b'"top_k": 2', b'"top_k": 1'))
    before = _files(request_of.out)
    with pytest.raises(DamagedDataError, match="put a copy of it back, or measure into another --out"):
        repair(request_of.out, dry_run=False)
    assert _files(request_of.out) == before


def test_loads_that_no_part_is_to_blame_for_can_not_be_repaired(request_of):
    path = request_of.out / "manifest.json"
    path.write_bytes(encode(replace(decode(path.read_bytes(), where="here"), content_hash="0" * 64)))
    with pytest.raises(DamagedDataError, match="no part is damaged"):
        repair(request_of.out, dry_run=False)


def test_a_part_name_that_leaves_the_run_moves_nothing(request_of, tmp_path):
    (tmp_path / "precious.parquet").write_bytes(b"precious")
    path = request_of.out / "manifest.json"
    manifest = decode(path.read_bytes(), where="here")
    parts = (replace(manifest.parts[0], name="../precious.parquet"), *manifest.parts[1:])
    path.write_bytes(encode(replace(manifest, parts=parts)))
    with pytest.raises(DamagedDataError, match="is no part of a run"):
        repair(request_of.out, dry_run=False)
    assert (tmp_path / "precious.parquet").read_bytes() == b"precious"


def test_a_folder_without_a_run_is_neither_made_nor_locked(tmp_path):
    with pytest.raises(InputError, match="no run here"):
        repair(tmp_path / "nowhere", dry_run=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(
    "a repair while another process writes the run",
    how="its lock held on this host, and its lock file naming another",
    tries=2,
    outcome="exit 4 with host and process; nothing moved",
)
def test_a_run_that_is_being_written_is_not_repaired(damaged):
    before = _files(damaged.out)
    with writer_lock(damaged.out), pytest.raises(StorageError, match=f"written by pid {os.getpid()} on {socket.gethostname()}"):
        repair(damaged.out, dry_run=False)
    (damaged.out / LOCK_NAME).write_text(json.dumps({"host": "elsewhere", "pid": 7}))
    with pytest.raises(StorageError, match="pid 7 on host elsewhere"):
        repair(damaged.out, dry_run=False)
    (damaged.out / LOCK_NAME).unlink()
    assert _files(damaged.out) == before


def test_a_workers_damaged_record_goes_with_its_part_or_alone(request_for, listener, tmp_path, measured):
    """Of three parts that a worker committed: one record edited, one part altered; both are made again, the third is kept."""
    request = request_for(tmp_path / "half")
    measure_three(request, Worker(index=1, count=2))
    edited, altered, kept = [path.name for path in open_run(request.out).part_paths("loads")][:3]
    record = record_path(request.out, edited)
    record.write_bytes(record.read_bytes().replace(b'"halvings": 0', b'"halvings": 1'))
    _flip(request.out / altered)
    time_kept = (request.out / kept).stat().st_mtime_ns
    told = _told(repair(request.out, dry_run=False))
    assert set(told) == {record.name, altered, record_path(request.out, altered).name}
    measure(request, listener)
    assert read_manifest(request.out).content_hash == decode(measured["manifest.json"], where="here").content_hash
    assert (request.out / kept).stat().st_mtime_ns == time_kept


def test_a_repaired_import_is_imported_again(tmp_path):
    # 4 tokens x top-1: 3 and 1 rows.
    (tmp_path / "counts.csv").write_text("layer,expert,routed_rows\n0,0,3\n0,1,1\n")
    request = CountsRequest(
        files=(tmp_path / "counts.csv",),
        out=tmp_path / "run",
        num_tokens=4,
        top_k=1,
        num_experts=2,
        model=None,
        label=None,
        engine=None,
        command=("import", "counts", "counts.csv"),
    )
    import_counts(request, lambda _note: None)
    whole = read_manifest(request.out).content_hash
    _flip(request.out / "loads-00000.parquet")
    answer = repair(request.out, dry_run=False)
    assert (answer.body["state"], answer.body["next_step"]) == (
        "importing",
        "the same routing import again: routing import counts counts.csv",
    )
    import_counts(request, lambda _note: None)
    assert open_run(request.out).manifest.content_hash == whole


def test_a_finished_run_that_names_too_few_parts_is_gone_on_with(tmp_path):
    run = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[5], loads={(0, 0): [3, 2]}, num_experts=2, top_k=1)
    path = run.folder / "manifest.json"
    path.write_bytes(encode(replace(run.manifest, parts=run.manifest.parts[:-1])))
    with pytest.raises(DamagedDataError, match=f"0 parts of loads, not 1; routing repair {run.folder}"):
        open_run(run.folder)
    assert repair(run.folder, dry_run=False).body["state"] == "measuring"


@pytest.fixture
def oddly_named(tmp_path):
    """A run in a folder whose name holds what parts an error's halves, a space, and nothing a shell takes as it is."""
    made = {"paths": [[0]], "segment_tokens": [5], "loads": {(0, 0): [3, 2]}, "num_experts": 2, "top_k": 1}
    return write_tiny_run(tmp_path / "a; b: c" / "run", **made).folder


def test_a_fault_is_told_whole_and_the_next_step_can_be_typed(oddly_named):
    (oddly_named / "loads-00000.parquet").unlink()
    with pytest.raises(DamagedDataError) as told:
        open_run(oddly_named)
    assert str(told.value).endswith(f"not on disk; routing repair '{oddly_named}'")
    answer = repair(oddly_named, dry_run=True)
    assert _told(answer) == {"loads-00000.parquet": ("in the manifest, and not on disk", None)}
    assert answer.body["next_step"] == f"routing repair '{oddly_named}'"


@pytest.mark.parametrize(("content", "fault"), [(None, "gone, and the parts beside it"), (b"{", "not the JSON of a run")])
def test_a_damaged_manifest_is_named_by_its_whole_path(oddly_named, content, fault):
    path = oddly_named / "manifest.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DamagedDataError) as told:
        repair(oddly_named, dry_run=True)
    assert str(told.value).startswith(f"{path}: {fault}")
    assert str(told.value).endswith("put a copy of it back, or measure into another --out")
    assert str(told.value).count("put a copy") == 1
