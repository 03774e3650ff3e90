"""One writer a run: a living holder is respected, a dead one replaced, another host's explained."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from routing.core.errors import InputError, StorageError
from routing.store.lock import LOCK_NAME, LOCK_NAMES, MANIFEST_LOCK_NAME, manifest_lock, part_claims, worker_lock, writer_lock
from routing.store.run import writing


def test_a_second_writer_is_told_who_holds_the_run(tmp_path):
    with writer_lock(tmp_path), pytest.raises(StorageError, match=f"written by pid {os.getpid()} on"), writer_lock(tmp_path):
        pass


@pytest.mark.fault(
    "two writers on one run",
    how="a second process takes the lock that this one holds",
    tries=1,
    outcome="exit 4, the holder's process and host named",
)
def test_a_second_process_is_kept_out(tmp_path):
    code = "import sys, pathlib\nfrom routing.store.lock import writer_lock\nwith writer_lock(pathlib.Path(sys.argv[1])): pass"
    with writer_lock(tmp_path):
        second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"pid {os.getpid()}" in second.stderr
    third = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert third.returncode == 0


@pytest.mark.fault(
    "the lock of a process that is gone on this host",
    how="a lock file that names process 999999",
    tries=1,
    outcome="taken over with a notice",
)
def test_the_lock_of_a_dead_process_is_taken_over_with_a_notice(tmp_path):
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": socket.gethostname(), "pid": 999_999}))
    with writer_lock(tmp_path) as notices:
        assert len(notices) == 1
        assert "pid 999999 is gone" in notices[0]
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.fault(
    "the lock of another host",
    how="a lock file that names another host",
    tries=1,
    outcome="exit 4, the host, the process and the file to delete named",
)
def test_the_lock_of_another_host_is_explained(tmp_path):
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": "elsewhere", "pid": 7}))
    with pytest.raises(StorageError, match="pid 7 on host elsewhere; if that process is gone, delete"), writer_lock(tmp_path):
        pass


def test_workers_share_a_run_that_nobody_else_gets_and_the_last_one_leaves_no_lock(tmp_path):
    with worker_lock(tmp_path):
        with worker_lock(tmp_path) as notices, manifest_lock(tmp_path):
            assert notices == ()
        with pytest.raises(StorageError, match=f"written by pid {os.getpid()} on"), writer_lock(tmp_path):
            pass
        assert sorted(one.name for one in tmp_path.iterdir()) == [LOCK_NAME, MANIFEST_LOCK_NAME]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(
    "a clock that jumps while a run is locked",
    how="time.time set to 0 and ten years ahead, the lock file's own time the other way",
    tries=4,
    outcome="a living holder keeps the run, a dead one does not: no time decides",
)
@pytest.mark.parametrize("now", [0.0, 2e9])
@pytest.mark.parametrize("lock", [writer_lock, worker_lock])
def test_no_clock_decides_whether_a_lock_holds(tmp_path, monkeypatch, lock, now):
    monkeypatch.setattr(time, "time", lambda: now)
    path = tmp_path / LOCK_NAME
    with writer_lock(tmp_path):
        os.utime(path, (2e9 - now, 2e9 - now))
        with pytest.raises(StorageError, match="the run is being written"), lock(tmp_path):
            pass
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": 999_999}))
    os.utime(path, (2e9 - now, 2e9 - now))
    with lock(tmp_path) as notices:
        assert "pid 999999 is gone" in notices[0]


@pytest.mark.parametrize("lock", [writer_lock, worker_lock])
@pytest.mark.parametrize("was", [{}, {"is_worker": True}])
def test_a_dead_worker_or_writer_keeps_nobody_out(tmp_path, lock, was):
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": socket.gethostname(), "pid": 999_999, **was}))
    with lock(tmp_path) as notices:
        assert len(notices) == (0 if lock is worker_lock and was else 1)  # a worker joins the others, dead or not
    assert list(tmp_path.iterdir()) == []


def test_a_worker_joins_those_of_other_hosts_and_not_a_single_writer_there(tmp_path):
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": "elsewhere", "pid": 7, "is_worker": True}))
    with worker_lock(tmp_path):
        pass
    (tmp_path / LOCK_NAME).write_text(json.dumps({"host": "elsewhere", "pid": 7}))
    with pytest.raises(StorageError, match="pid 7 on host elsewhere; if that process is gone, delete"), worker_lock(tmp_path):
        pass


def test_an_empty_lock_file_is_free(tmp_path):
    (tmp_path / LOCK_NAME).write_text("")
    with writer_lock(tmp_path) as notices:
        assert notices == ()


@pytest.mark.parametrize("text", ["a key to the shed", "[1]"])
def test_somebody_elses_lock_file_is_left_alone(tmp_path, text):
    (tmp_path / LOCK_NAME).write_text(text)
    with pytest.raises(StorageError, match="no lock of this program"), writer_lock(tmp_path):
        pass
    assert (tmp_path / LOCK_NAME).read_text() == text


def test_the_lock_goes_with_its_holder_however_it_ends(tmp_path):
    with pytest.raises(KeyError), writer_lock(tmp_path):
        raise KeyError
    assert not (tmp_path / LOCK_NAME).exists()


def test_a_writer_removes_what_an_interrupted_one_left(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "loads-00000.parquet.tmp-77").write_bytes(b"torn")
    with writing(tmp_path / "run") as notices:
        assert "1 unfinished files" in notices[0]
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("name", ["thesis.txt", "thesis.tmp-1", "my-loads-00000.parquet.tmp-7", ".hidden"])
def test_a_folder_of_somebody_elses_is_not_touched(tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("precious")
    with pytest.raises(InputError, match="and no run; choose an empty or new --out"), writing(tmp_path / "run"):
        pass
    assert [(one.name, one.read_text()) for one in (tmp_path / "run").iterdir()] == [(name, "precious")]


CLAIM = """
import pathlib, sys
from routing.store.lock import part_claims
with part_claims(pathlib.Path(sys.argv[1])) as claim, claim(int(sys.argv[2])) as is_ours:
    print(is_ours, flush=True)
    sys.stdin.read()
"""


def _claiming(folder, part):
    """A process that claims a part, says whether it got it, and holds it until its input ends."""
    command = [sys.executable, "-c", CLAIM, str(folder), str(part)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_part_is_held_by_one_worker_and_free_again_when_that_one_is_killed(tmp_path):
    with worker_lock(tmp_path), part_claims(tmp_path) as claim, _claiming(tmp_path, 7) as other:
        assert other.stdout.readline() == "True\n"
        with claim(7) as is_ours, claim(8) as is_another:
            assert (is_ours, is_another) == (False, True)
            with _claiming(tmp_path, 8) as third:
                assert third.communicate()[0] == "False\n"
        other.kill()
        other.wait()
        with claim(7) as is_ours:
            assert is_ours
    assert list(tmp_path.iterdir()) == []


def test_the_writer_of_a_run_removes_the_locks_that_killed_workers_left(tmp_path):
    for name in LOCK_NAMES[1:]:
        (tmp_path / name).touch()
    with writing(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
