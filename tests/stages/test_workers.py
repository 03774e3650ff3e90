"""Several workers measure one run without a word between them, and end with what one process ends with."""

import itertools
import multiprocessing
import os
import signal
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routing.core.errors import DamagedDataError, StorageError
from routing.core.worker import Worker
from routing.stages import begin, share
from routing.stages import measure as measure_module
from routing.stages.measure import measure
from routing.stages.share import measure_share
from routing.store import worker_parts
from routing.store.files import TEMPORARY_MARK
from routing.store.run import open_run, part_name, read_manifest, working, writing
from routing.store.worker_parts import commit_part
from tests.stages.conftest import Listener, build_request

FORK = multiprocessing.get_context("fork")  # torch is imported once, for all


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 300)


@pytest.fixture(scope="module")
def whole(policy_folder, corpus_file, tmp_path_factory):
    """The manifest of the run that one process measures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "TOKENS_PER_PART", 300)
        out = tmp_path_factory.mktemp("whole") / "run"
        measure(build_request(policy_folder, corpus_file, out), Listener())
    return read_manifest(out)


def _die_while_writing(name):
    """This process kills itself with -9 when the part `name` would get its name."""
    rename = os.replace
    os.replace = lambda old, new: os.kill(os.getpid(), signal.SIGKILL) if str(new).endswith(name) else rename(old, new)


def _work(request, dying_at):
    if dying_at is not None:
        _die_while_writing(dying_at)
    measure_share(request, Listener())


def _run_workers(request, count, *, dying=None, dying_at=None):
    """Exit codes of `count` processes that measure at once, of which the worker `dying` kills itself at a part."""
    shares = [replace(request, worker=Worker(index=index, count=count)) for index in range(count)]
    workers = [FORK.Process(target=_work, args=(one, dying_at if one.worker.index == dying else None)) for one in shares]
    for one in workers:
        one.start()
    for one in workers:
        one.join(timeout=120)
    return [one.exitcode for one in workers]


def test_four_workers_one_killed_and_three_after_them_end_like_one_process(request_for, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    assert whole.planned_load_parts >= 8
    third_quarter = part_name("loads", whole.planned_load_parts * 5 // 8)  # in the middle of the third worker's share
    codes = _run_workers(request, 4, dying=2, dying_at=third_quarter)
    assert codes == [0, 0, -signal.SIGKILL, 0]
    torn = open_run(request.out)
    done = [path.name for path in torn.part_paths("loads")]
    assert torn.manifest.state == "measuring"
    assert third_quarter not in done
    assert any(name.startswith(third_quarter) and TEMPORARY_MARK in name for name in os.listdir(request.out))
    written = {name: (request.out / name).stat().st_mtime_ns for name in done}
    assert _run_workers(request, 3) == [0, 0, 0]
    run = open_run(request.out)
    assert (run.manifest.state, run.manifest.content_hash, run.notices) == ("finished", whole.content_hash, ())
    assert [one.name for one in run.manifest.parts] == [one.name for one in whole.parts]
    assert {name: (request.out / name).stat().st_mtime_ns for name in done} == written  # only what was missing is measured
    assert sorted(os.listdir(request.out)) == sorted(["manifest.json", *(one.name for one in whole.parts)])


def test_a_single_process_goes_on_where_workers_stopped(request_for, listener, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    result = measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    assert result.state == "measuring"
    assert 0 < result.parts_measured == result.parts_done < result.parts == whole.planned_load_parts
    assert read_manifest(request.out).parts == tuple(one for one in read_manifest(request.out).parts if one.table != "loads")
    measure(request, listener)
    assert any(f"going on, {result.parts_done} of {result.parts} parts are in" in note for note in listener.notes)
    manifest = open_run(request.out).manifest
    assert manifest.content_hash == whole.content_hash
    assert manifest.elapsed_s > result.elapsed_s > 0
    assert not list(request.out.glob("loads-*.json"))


def test_workers_without_a_share_seal_what_the_others_measured(request_for, listener, tmp_path, whole):
    """More workers than parts: some have nothing to do, and the last one to look seals the run."""
    request = request_for(tmp_path / "shared")
    count = whole.planned_load_parts + 1
    states = [measure_share(replace(request, worker=Worker(index=index, count=count)), listener) for index in range(count)]
    assert sum(one.parts_measured for one in states) == whole.planned_load_parts
    assert 0 in {one.parts_measured for one in states}
    assert read_manifest(request.out).content_hash == whole.content_hash


def test_one_process_and_workers_do_not_share_a_run(request_for, listener, tmp_path):
    request = request_for(tmp_path / "run")
    with working(request.out), pytest.raises(StorageError, match="the run is being written by pid"):
        measure(request, listener)
    with writing(request.out), pytest.raises(StorageError, match="the run is being written by pid"):
        measure_share(replace(request, worker=Worker(index=0, count=2)), listener)


@pytest.fixture
def half_done(request_for, listener, tmp_path):
    """A run of which the second of two workers has measured its share, and the name of its last part."""
    request = request_for(tmp_path / "half")
    measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    return request, open_run(request.out).part_paths("loads")[-1].name


def _commit_again(request, name, change):
    rows = pq.ParquetFile(request.out / name).read()
    counted = rows["routed_rows"].to_pylist()
    counted[0] += change
    rows = rows.set_column(3, rows.schema.field("routed_rows"), pa.array(counted, pa.int32()))
    return commit_part(request.out, read_manifest(request.out), name, rows, rows_per_segment=32, elapsed_s=1.0, halvings=0)


@pytest.mark.fault(
    "a part that two workers counted alike",
    how="a worker commits the rows that another one has committed",
    tries=1,
    outcome="dropped with a notice, the run as before",
)
def test_a_part_that_two_workers_counted_alike_is_kept_once(half_done):
    request, name = half_done
    before = open_run(request.out).manifest
    assert "committed the same rows; ours are dropped" in _commit_again(request, name, 0)
    assert open_run(request.out).manifest == before


@pytest.mark.fault(
    "a part that two workers counted otherwise",
    how="a worker commits one row more than another one has",
    tries=1,
    outcome="exit 3, nothing replaced",
)
def test_a_part_that_two_workers_counted_otherwise_is_damage_and_replaces_nothing(half_done):
    request, name = half_done
    before = (request.out / name).read_bytes()
    with pytest.raises(DamagedDataError, match=rf"{name}: another worker counted other rows"):
        _commit_again(request, name, 1)
    assert (request.out / name).read_bytes() == before


@pytest.mark.fault(
    "a part whose worker died before it recorded it",
    how="the record beside a part removed",
    tries=1,
    outcome="ignored with a notice, measured again; the content hash of one process",
)
def test_a_part_whose_record_is_missing_is_measured_again(half_done, listener, whole):
    request, name = half_done
    worker_parts.record_path(request.out, name).unlink()
    assert any(name in notice and "ignored" in notice for notice in open_run(request.out).notices)
    measure(request, listener)
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.mark.fault(
    "a worker's record edited",
    how="a count and a table's name changed in it",
    tries=2,
    outcome="exit 3, the record named",
)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"halvings": 0', b'"halvings": 1', "altered after it was written"),
        (b'"table": "loads"', b'"table": "paths"', "altered after it was written"),
    ],
)
def test_an_edited_record_is_damage(half_done, old, new, said):
    request, name = half_done
    path = worker_parts.record_path(request.out, name)
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DamagedDataError, match=said):
        open_run(request.out)


@pytest.mark.fault(
    "a worker of another measurement still at work in the folder",
    how="a record made for another policy and corpus",
    tries=1,
    outcome="ignored with a notice, its part measured again",
)
def test_the_record_of_a_worker_that_measured_something_else_is_ignored(half_done, listener, request_for, whole):
    """Somebody removed the run and began another in its place while an old worker still ran."""
    request, name = half_done
    path = worker_parts.record_path(request.out, name)
    record = worker_parts.decode_part_record(path.read_bytes(), where="here")
    path.write_bytes(worker_parts.encode(replace(record, made_for="0" * 64)))
    assert any("of another measurement, ignored" in notice for notice in open_run(request.out).notices)
    measure(request, listener)
    assert read_manifest(request.out).content_hash == whole.content_hash


def test_a_worker_that_reads_another_corpus_does_not_join(half_done, listener):
    request, _ = half_done
    with pytest.raises(begin.InputError, match="was measured with max_tokens None, now 1000"):
        measure_share(replace(request, worker=Worker(index=0, count=2), max_tokens=1000), listener)


@pytest.mark.fault(
    "the same share dealt to two workers",
    how="a second worker of the same number measures it all while the first one loads its policy",
    tries=1,
    outcome="the first one's parts are dropped with a notice; the content hash of one process",
)
def test_a_share_that_is_dealt_twice_is_kept_once(request_for, listener, tmp_path, whole, monkeypatch):
    request = request_for(tmp_path / "shared")
    first = replace(request, worker=Worker(index=0, count=2))
    load, twin = share.load_policy, FORK.Process(target=measure_share, args=(first, Listener()))

    def load_late(*args, **kwargs):
        monkeypatch.setattr(share, "load_policy", load)  # the twin, forked from here, waits for nobody
        twin.start()
        twin.join(timeout=120)
        return load(*args, **kwargs)

    monkeypatch.setattr(share, "load_policy", load_late)
    result = measure_share(first, listener)
    assert twin.exitcode == 0
    assert sum("committed the same rows; ours are dropped" in note for note in listener.notes) == result.parts_measured > 0
    measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.mark.fault(
    "workers added and taken away while a run is measured",
    how="one of two, then one of five, then three together measure what is left",
    tries=1,
    outcome="no part is measured twice; the content hash of one process",
)
def test_workers_may_be_more_or_fewer_each_time(request_for, listener, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    turns = (Worker(index=1, count=2), Worker(index=0, count=5))
    done = [measure_share(replace(request, worker=worker), listener) for worker in turns]
    assert done[-1].parts_done == sum(one.parts_measured for one in done) < whole.planned_load_parts
    assert _run_workers(request, 3) == [0, 0, 0]
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.mark.fault(
    "a clock that jumps between the calls of one measurement",
    how="a year back at every reading, and the times of all files shuffled",
    tries=1,
    outcome="every part once, elapsed time not negative, the content hash of one process",
)
def test_no_clock_decides_what_is_measured(request_for, listener, tmp_path, whole, monkeypatch):
    years = itertools.count(2100, -1)
    for module in (begin, measure_module):
        monkeypatch.setattr(module, "utc_now", lambda: f"{next(years)}-01-01T00:00:00Z")
    request = request_for(tmp_path / "shared")
    measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    for number, path in enumerate(sorted(request.out.iterdir(), reverse=True)):
        os.utime(path, (number * 1e8, number * 1e8))
    measure(request, listener)
    manifest = open_run(request.out).manifest
    assert (manifest.started_at > str(manifest.finished_at), manifest.elapsed_s > 0) == (True, True)
    assert {one.name for one in manifest.parts} == {one.name for one in whole.parts}
    assert manifest.content_hash == whole.content_hash


def test_a_worker_measures_no_part_twice(half_done, listener, monkeypatch):
    request, _ = half_done
    monkeypatch.setattr(share, "load_policy", lambda *_args, **_kwargs: pytest.fail("nothing is left to measure"))
    assert measure_share(replace(request, worker=Worker(index=1, count=2)), listener).parts_measured == 0
