"""An interrupt drops the part at hand, keeps the others, and the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from routing.store.run import open_run, read_manifest
from tests.conftest import REPOSITORY
from tests.policies import write_tiny_policy

# Stands still before the third part, so that the signal finds the measurement at work however slow the machine is.
WAIT = """
import sys, time
from pathlib import Path
from routing.store.run import RunWriter
commit = RunWriter.commit
def wait(self, table, index, *args, **kwargs):
    if (table, index) == ("loads", 2):
        (self.folder.parent / "waiting").touch()
        time.sleep(120)
    commit(self, table, index, *args, **kwargs)
RunWriter.commit = wait
"""


@pytest.mark.fault(
    "SIGINT or SIGTERM while it measures",
    how="the signal is sent before the third part is committed",
    tries=2,
    outcome="exit 130, the part at hand dropped, the others kept; the same command goes on",
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_measurement_is_exit_130_and_resumable(tmp_path, name):
    policy = write_tiny_policy(tmp_path / "policy")
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"input_ids": [(7 * row + place * place) % 256 for place in range(200)]} for row in range(60)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["measure", str(policy), str(corpus), "--out", str(tmp_path / "run"), "--segment-tokens", "64"]
    code = "from routing.stages import begin; begin.TOKENS_PER_PART = 400; from routing.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", WAIT + code, *arguments], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "waiting").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.Signals[name])
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    stopped = open_run(tmp_path / "run")
    assert len(stopped.part_paths("loads")) == 2 < stopped.manifest.planned_load_parts
    again = subprocess.run([sys.executable, "-c", code, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert read_manifest(tmp_path / "run").state == "finished"


@pytest.mark.fault(
    "SIGINT or SIGTERM that a library turns into its own error",
    how="the signal is raised inside a query that then raises RuntimeError",
    tries=2,
    outcome="exit 130 in one line",
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_that_a_library_takes_for_its_own_error_is_exit_130(monkeypatch, capsys, name):
    from routing.cli import main
    from routing.stages import show

    def asking(_folder):
        try:
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(5)
        except BaseException:
            raise RuntimeError("Query interrupted") from None  # what DuckDB makes of it

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    monkeypatch.setattr(show, "show", asking)
    monkeypatch.setattr(sys, "argv", ["routing", "show", "run"])
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert left.value.code == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.fault(
    "SIGINT or SIGTERM while the program is being loaded",
    how="an import finder sends the signal",
    tries=2,
    outcome="exit 130 in one line",
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_while_the_verbs_are_loaded_is_one_line(name):
    """The signal comes while `routing.cli.app` is imported, which a finder that raises it makes sure of."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "routing.cli.app":
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Finder())
from routing.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "routing: interrupted; nothing was begun\n")


@pytest.mark.fault(
    "SIGINT or SIGTERM after the answer", how="an exit handler sends the signal", tries=2, outcome="the answer whole, exit 0"
)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_interpreter_is_taken_down_leaves_the_answer_whole(name):
    code = f"""
import atexit, os, signal, sys
atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
sys.argv = ["routing", "--help"]
from routing.cli import command
command()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "measure" in done.stdout
