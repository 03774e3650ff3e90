"""Several workers measure one run without a word between them, and end with what one process ends with."""

import itertools
import multiprocessing
import os
import re
import signal
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routing.core.errors import DamagedDataError, StorageError
from routing.core.worker import Worker
from routing.measure import anchors
from routing.stages import begin, settle, share, walk
from routing.stages import measure as measure_module
from routing.stages.measure import measure
from routing.stages.share import measure_share
from routing.store import worker_parts
from routing.store.files import TEMPORARY_MARK
from routing.store.run import open_run, read_manifest, working, writing
from routing.store.worker_parts import commit_part
from tests.stages.conftest import Listener
from tests.stages.workers import Enough, before_commit, measure_three, measured_in_parts, stop

FORK = multiprocessing.get_context("fork")  # torch is imported once, for all


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", 300)


@pytest.fixture(scope="module")
def whole(policy_folder, corpus_file, tmp_path_factory):
    """The manifest of the run that one process measures."""
    return read_manifest(measured_in_parts(policy_folder, corpus_file, tmp_path_factory.mktemp("whole") / "run", tokens=300))


def _die_while_writing(begun, go):
    """This process kills itself with -9 when its first part would get its name, which sets `begun`, and not before `go`."""
    rename = os.replace

    def die(old, new):
        if "loads-" in str(new) and str(new).endswith(".parquet"):
            begun.set()
            go.wait(timeout=120)
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    os.replace = die


def _work(request, is_dying, begun, go):
    if is_dying:
        _die_while_writing(begun, go)
    else:
        begun.wait(timeout=120)
    measure_share(request, Listener())


def _run_workers(request, count, *, absent=None, dying=None):
    """Exit codes of `count` processes that measure at once, one of them `absent`; `dying` kills itself after the others left.

    The others begin when the one that dies is at its first part, which they would take from it.
    """
    begun, go, workers = FORK.Event(), FORK.Event(), {}
    if dying is None:
        begun.set()
    for index in set(range(count)) - {absent}:
        one = replace(request, worker=Worker(index=index, count=count))
        workers[index] = FORK.Process(target=_work, args=(one, index == dying, begun, go))
        workers[index].start()
    for index in sorted(workers, key=lambda index: index == dying):
        if index == dying:
            go.set()
        workers[index].join(timeout=120)
    return [workers[index].exitcode for index in sorted(workers)]


def _written(run):
    """When each part of loads was written, by its name."""
    return {path.name: path.stat().st_mtime_ns for path in run.part_paths("loads")}


@pytest.mark.fault(
    "one of several workers is killed with -9 while it writes a part, after the others left",
    how="four processes measure one run, one kills itself in the rename of a part",
    tries=1,
    outcome="that part is missing and named torn; three workers after them measure it alone, and end like one process",
)
def test_four_workers_one_killed_and_three_after_them_end_like_one_process(request_for, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    assert whole.planned_load_parts >= 8
    assert _run_workers(request, 4, dying=2) == [0, 0, -signal.SIGKILL, 0]
    torn = open_run(request.out)
    assert torn.manifest.state == "measuring"
    # The others took what the killed one had not come to; what it held is all that is missing.
    (held,) = {part.name for part in whole.parts} - {part.name for part in torn.manifest.parts}
    assert any(name.startswith(held) and TEMPORARY_MARK in name for name in os.listdir(request.out))
    before = _written(torn)
    assert _run_workers(request, 3) == [0, 0, 0]
    run = open_run(request.out)
    assert (run.manifest.state, run.manifest.content_hash, run.notices) == ("finished", whole.content_hash, ())
    assert [one.name for one in run.manifest.parts] == [one.name for one in whole.parts]
    after = _written(run)
    assert {name: after[name] for name in before} == before  # only what was missing is measured
    assert sorted(os.listdir(request.out)) == sorted(["manifest.json", *(one.name for one in whole.parts)])


@pytest.mark.fault(
    "one of several workers never starts, or dies before its first part",
    how="two of three workers measure, the third isn't started",
    tries=1,
    outcome="those at work take its share too, and the run is finished",
)
def test_the_share_of_a_worker_that_never_came_is_taken_by_the_others(request_for, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    assert _run_workers(request, 3, absent=1) == [0, 0]
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.fixture
def half_done(request_for, tmp_path):
    """A run of which the second of two workers has measured three parts and stopped, and the name of the last."""
    request = request_for(tmp_path / "half")
    measure_three(request, Worker(index=1, count=2))
    return request, open_run(request.out).part_paths("loads")[-1].name


def test_a_rerun_deals_what_is_missing_to_all_its_workers(half_done, whole, monkeypatch):
    """The missing parts lie on both sides of those that are in; three workers have a share of them each."""
    request, _ = half_done
    monkeypatch.setattr(share, "load_policy", lambda *_args, **_kwargs: stop())
    missing, shares = whole.planned_load_parts - 3, []
    for index in range(3):
        listener = Listener()
        with pytest.raises(Enough):
            measure_share(replace(request, worker=Worker(index=index, count=3)), listener)
        (found,) = [re.search(rf"(\d+) of {missing} missing parts are its share", note) for note in listener.notes]
        shares.append(int(found[1]))
    assert sum(shares) == missing
    assert max(shares) - min(shares) <= 2  # parts of unequal length


def test_a_worker_that_comes_late_neither_repeats_a_part_nor_leaves_a_gap(request_for, tmp_path, whole, monkeypatch):
    """It deals fewer parts than the one at work has dealt, so that their shares overlap and leave parts to nobody."""
    request = request_for(tmp_path / "late")
    answers = FORK.SimpleQueue()

    def come_late():
        patch.undo()
        one = replace(request, worker=Worker(index=1, count=2))
        process = FORK.Process(target=lambda: answers.put(measure_share(one, Listener()).parts_measured))
        process.start()
        process.join(timeout=120)
        assert process.exitcode == 0

    with monkeypatch.context() as patch:
        before_commit(patch, 2, come_late)
        first = measure_share(replace(request, worker=Worker(index=0, count=2)), Listener())
    assert (first.parts_measured, answers.get()) == (3, whole.planned_load_parts - 3)  # all but two, and the one being measured
    assert (first.state, read_manifest(request.out).content_hash) == ("finished", whole.content_hash)


def test_a_single_process_goes_on_where_workers_stopped(half_done, listener, whole):
    request, _ = half_done
    found = open_run(request.out)
    done = len(found.part_paths("loads"))
    assert 0 < done < whole.planned_load_parts
    assert [one for one in read_manifest(request.out).parts if one.table == "loads"] == []
    measure(request, listener)
    assert any(f"going on, {done} of {whole.planned_load_parts} parts are in" in note for note in listener.notes)
    manifest = open_run(request.out).manifest
    assert manifest.content_hash == whole.content_hash
    assert manifest.elapsed_s > found.manifest.elapsed_s > 0
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
    how="two processes of the same number measure at once",
    tries=1,
    outcome="each part once, by one of them; the content hash of one process",
)
def test_a_share_that_is_dealt_twice_is_measured_once(request_for, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    first = replace(request, worker=Worker(index=0, count=2))
    twins = [FORK.Process(target=measure_share, args=(first, Listener())) for _ in range(2)]
    for one in twins:
        one.start()
    for one in twins:
        one.join(timeout=120)
    assert [one.exitcode for one in twins] == [0, 0]
    run = open_run(request.out)
    assert (run.manifest.content_hash, run.notices) == (whole.content_hash, ())


@pytest.mark.fault(
    "workers added and taken away while a run is measured",
    how="one of two, then one of five, then three together measure what is left",
    tries=1,
    outcome="no part is measured twice; the content hash of one process",
)
def test_workers_may_be_more_or_fewer_each_time(request_for, tmp_path, whole):
    request = request_for(tmp_path / "shared")
    for worker in (Worker(index=1, count=2), Worker(index=0, count=5)):
        measure_three(request, worker)
    before = _written(open_run(request.out))
    assert len(before) == 6 < whole.planned_load_parts
    assert _run_workers(request, 3) == [0, 0, 0]
    after = _written(open_run(request.out))
    assert {name: after[name] for name in before} == before
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
    measure_three(request, Worker(index=1, count=2))
    for number, path in enumerate(sorted(request.out.iterdir(), reverse=True)):
        os.utime(path, (number * 1e8, number * 1e8))
    measure(request, listener)
    manifest = open_run(request.out).manifest
    assert (manifest.started_at > str(manifest.finished_at), manifest.elapsed_s > 0) == (True, True)
    assert {one.name for one in manifest.parts} == {one.name for one in whole.parts}
    assert manifest.content_hash == whole.content_hash


def test_a_worker_that_finds_all_parts_in_loads_no_weights(half_done, listener, monkeypatch):
    request, _ = half_done
    measure_share(replace(request, worker=Worker(index=0, count=2)), listener)
    monkeypatch.setattr(share, "load_policy", lambda *_args, **_kwargs: pytest.fail("nothing is left to measure"))
    assert measure_share(replace(request, worker=Worker(index=1, count=2)), listener).parts_measured == 0


@pytest.fixture
def _short_prefixes_pay(monkeypatch):
    monkeypatch.setattr(anchors, "MIN_SAVED_TOKENS", 100)


@pytest.mark.usefixtures("_short_prefixes_pay")
def test_workers_compute_prefixes_once_and_end_like_whole_trajectories(request_for, tmp_path, whole):
    """The last share first: its worker has to compute prefixes that nobody has counted yet."""
    request = request_for(tmp_path / "run")
    for index in (2, 0):
        measure_three(request, Worker(index=index, count=3))
    measure_share(replace(request, worker=Worker(index=1, count=3)), Listener())
    manifest = read_manifest(request.out)
    assert (whole.settings.walk, manifest.settings.walk) == ("whole", "prefix-once")
    assert (manifest.state, manifest.content_hash) == ("finished", whole.content_hash)
    assert manifest.planned_tokens == manifest.corpus.tokens_packed


@pytest.mark.usefixtures("_short_prefixes_pay")
def test_a_worker_that_trusts_its_cache_goes_on_whole_where_another_said_so(request_for, listener, tmp_path, monkeypatch, whole):
    """Two workers probe at once; the first to write settles it for both."""
    request = request_for(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(walk, "is_trusted", lambda *_: False)
        measure_three(request, Worker(index=0, count=2))
    with monkeypatch.context() as patched:
        patched.setattr(share, "ask", lambda *given: settle.ask(*given[:2], None))  # nobody had written yet
        measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    assert listener.tokens == sum(part.num_tokens for part in begin.prepare(request, Listener()).parts[3:])
    manifest = read_manifest(request.out)
    assert manifest.settings.walk == "whole"
    assert (manifest.state, manifest.content_hash) == ("finished", whole.content_hash)


@pytest.mark.usefixtures("_short_prefixes_pay")
def test_a_worker_whose_cache_fails_does_not_join_those_who_go_on_from_theirs(request_for, tmp_path, monkeypatch):
    request = request_for(tmp_path / "run")
    measure_three(request, Worker(index=0, count=2))
    monkeypatch.setattr(walk, "is_trusted", lambda *_: False)
    with pytest.raises(begin.InputError, match="begun with prefixes computed once, now the model's cache can't be gone on from"):
        measure_share(replace(request, worker=Worker(index=1, count=2)), Listener())


def test_a_worker_that_loads_its_weights_while_the_others_finish_leaves_the_run_alone(half_done, listener, monkeypatch):
    request, _ = half_done
    load = share.load_policy

    def load_slowly(*args, **kwargs):
        monkeypatch.setattr(share, "load_policy", load)
        measure_share(replace(request, worker=Worker(index=0, count=2)), listener)
        before.update({path.name: path.read_bytes() for path in request.out.iterdir()})
        return load(*args, **kwargs)

    before: dict[str, bytes] = {}
    monkeypatch.setattr(share, "load_policy", load_slowly)
    late = measure_share(replace(request, worker=Worker(index=1, count=2)), listener)
    assert (late.parts_measured, late.state) == (0, "finished")
    names = [name for name in before if "lock" not in name]
    assert {name: (request.out / name).read_bytes() for name in names} == {name: before[name] for name in names}
