"""A measurement stops anywhere and goes on; it ends with what an uninterrupted one ends with."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from routing.core.errors import CheckFailedError, InputError, StorageError
from routing.corpus import files
from routing.stages import begin
from routing.stages.measure import measure
from routing.stages.plan import plan
from routing.store.files import TEMPORARY_MARK
from routing.store.run import RunWriter, open_run, read_manifest
from tests.policies import changed_policy

TOKENS_PER_PART = 700


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(begin, "TOKENS_PER_PART", TOKENS_PER_PART)


@pytest.fixture
def whole(request_for, listener, tmp_path):
    measure(request_for(tmp_path / "whole"), listener)
    return open_run(tmp_path / "whole").manifest


def test_a_run_says_what_it_holds(request_for, listener, tmp_path):
    result = measure(request_for(tmp_path / "run", label="first"), listener)
    manifest = read_manifest(tmp_path / "run")
    assert (result.run, result.trajectories, result.refused) == ("run", 24, 0)
    assert (result.layers, result.experts, result.top_k) == (4, 8, 2)
    # Six heads of 60 tokens are shared by four trajectories each.
    assert result.tokens_logical - result.tokens_packed == 6 * 60 * 3
    assert (manifest.label, manifest.state, manifest.settings.dtype) == ("first", "finished", "float32")
    assert manifest.planned_load_parts > 3
    assert sum(part.num_rows for part in manifest.parts if part.table == "loads") == result.segments * 4 * 8


def test_a_finished_run_is_said_to_be_finished_and_left_alone(request_for, listener, tmp_path):
    measure(request_for(tmp_path / "run"), listener)
    before = {one.name: one.read_bytes() for one in (tmp_path / "run").iterdir()}
    measure(request_for(tmp_path / "run"), listener)
    assert {one.name: one.read_bytes() for one in (tmp_path / "run").iterdir()} == before
    assert any("finished already" in note for note in listener.notes)


def _measure_and_die(request, when):
    """Measures in a process of its own that kills itself with -9 at the third part of loads: `writing` it, or `written`."""
    code = f"""
        import os, signal
        from pathlib import Path
        import torch
        torch.set_num_threads(1)
        from routing.stages import begin
        from routing.stages.measure import measure
        from routing.store import files, run
        from tests.stages.conftest import Listener
        begin.TOKENS_PER_PART = {TOKENS_PER_PART}
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        replace, update = os.replace, run.RunWriter.update
        if {when!r} == "begun":
            os.replace = lambda old, new: (replace(old, new), str(new).endswith("segments-00000.parquet") and die())
        elif {when!r} == "writing":
            os.replace = lambda old, new: die() if str(new).endswith("loads-00002.parquet") else replace(old, new)
        else:
            run.RunWriter.update = lambda self, **c: die() if "00002" in str(c.get("parts", "")) else update(self, **c)
        measure(begin.MeasureRequest(policy={request.policy!r}, corpus=(Path({str(request.corpus[0])!r}),),
            out=Path({str(request.out)!r}), label=None, tokenizer=None, format=None, domain=None, segment_tokens=32,
            max_tokens=None, device="cpu", dtype="auto",
            on_bad_line="stop", command=("test",)), Listener())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=begin.__file__.rsplit("/routing/", 1)[0], check=False
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.fault(
    "kill -9 before the first part of loads",
    how="a process kills itself when segments-00000.parquet has its name",
    tries=1,
    outcome="the same command goes on; content hash of an uninterrupted run",
)
def test_a_run_killed_before_its_first_loads_goes_on(request_for, listener, tmp_path, whole):
    request = request_for(tmp_path / "begun")
    _measure_and_die(request, "begun")
    assert (request.out / "segments-00000.parquet").exists()
    measure(request, listener)
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.mark.fault(
    "kill -9 while a part is written, and between a part and its manifest",
    how="a process kills itself at the rename of loads-00002.parquet, and before the manifest that names it",
    tries=2,
    outcome="committed parts kept, the temporary deleted, content hash of an uninterrupted run",
)
@pytest.mark.parametrize("when", ["writing", "written"])
def test_a_killed_run_goes_on_and_ends_like_an_uninterrupted_one(request_for, listener, tmp_path, whole, when):
    request = request_for(tmp_path / "killed")
    _measure_and_die(request, when)
    torn = open_run(request.out)
    assert len(torn.part_paths("loads")) == 2
    assert any(TEMPORARY_MARK in one.name for one in request.out.iterdir()) == (when == "writing")
    committed = [path.stat().st_mtime_ns for path in torn.part_paths("loads")]
    measure(request, listener)
    resumed = open_run(request.out)
    assert resumed.manifest.content_hash == whole.content_hash
    assert [path.stat().st_mtime_ns for path in resumed.part_paths("loads")][:2] == committed
    assert not any(TEMPORARY_MARK in one.name or one.name == "lock" for one in request.out.iterdir())


def test_a_full_disk_keeps_what_was_committed_and_the_run_goes_on(request_for, listener, tmp_path, whole, monkeypatch):
    request = request_for(tmp_path / "full")
    commit = RunWriter.commit

    def full(self, table, index, rows, **changes):
        if (table, index) == ("loads", 1):
            monkeypatch.setattr(os, "fsync", lambda _descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        return commit(self, table, index, rows, **changes)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "commit", full)
        with pytest.raises(StorageError, match=r"loads-00001\.parquet: not written, No space left on device"):
            measure(request, listener)
    monkeypatch.undo()
    monkeypatch.setattr(begin, "TOKENS_PER_PART", TOKENS_PER_PART)
    assert len(open_run(request.out).part_paths("loads")) == 1
    measure(request, listener)
    assert read_manifest(request.out).content_hash == whole.content_hash


@pytest.mark.fault(
    "a run gone on with at another segment size, --max-tokens or dtype",
    how="the same command with one of them changed",
    tries=3,
    outcome="exit 2, both values named",
)
@pytest.mark.parametrize(
    ("changes", "what"),
    [({"segment_tokens": 16}, "segment_tokens 32"), ({"max_tokens": 1000}, "max_tokens None"), ({"dtype": "bfloat16"}, "dtype")],
)
def test_a_run_goes_on_only_with_what_it_began_with(request_for, listener, tmp_path, changes, what):
    measure(request_for(tmp_path / "run"), listener)
    with pytest.raises(InputError, match=f"was measured with {what}"):
        measure(request_for(tmp_path / "run", **changes), listener)


def test_a_folder_with_other_things_is_not_written_to(request_for, listener, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"'thesis\.txt' and no run"):
        measure(request_for(tmp_path / "run"), listener)


NO_NUMBER = pytest.mark.fault(
    "a router that gives NaN or Inf",
    how="a row of NaN, or of Inf, in the gate of layer 2 of a checkpoint",
    tries=2,
    outcome="exit 1: layer, segment, token, dtype; no part kept",
)
ALL_EQUAL = pytest.mark.fault(
    "a router whose logits are all equal",
    how="zeros for the gate of layer 2 of a checkpoint",
    tries=1,
    outcome="exit 1: layer, segment, token, dtype; no part kept",
)


@pytest.mark.parametrize(
    ("rows", "value", "what"),
    [
        pytest.param(0, float("nan"), "NaN or Inf", marks=NO_NUMBER),
        pytest.param(0, float("inf"), "NaN or Inf", marks=NO_NUMBER),
        pytest.param(slice(None), 0.0, "all logits equal", marks=ALL_EQUAL),
    ],
)
def test_a_router_without_a_choice_stops_the_run_and_keeps_no_part(
    request_for, listener, tmp_path, policy_folder, rows, value, what
):
    broken = changed_policy(policy_folder, tmp_path / "broken", "layers.2.mlp.gate.weight", rows, value)
    said = rf"layer 2, segment \d+: \d+ tokens .*{what}.*, the first its token \d+ \(float32, 0\.\.7 are its experts\)"
    with pytest.raises(CheckFailedError, match=said):
        measure(request_for(tmp_path / "run", policy=str(broken)), listener)
    assert open_run(tmp_path / "run").part_paths("loads") == []


def test_a_plan_spends_no_forward_pass_and_knows_the_sizes(request_for, listener, tmp_path, whole, monkeypatch):
    from routing.measure import policy

    monkeypatch.setattr(policy, "load_policy", lambda *_args, **_kwargs: pytest.fail("a plan loads no weights"))
    planned = plan(request_for(tmp_path / "planned"), listener)
    assert (planned.tokens_packed, planned.segments) == (whole.corpus.tokens_packed, whole.corpus.num_segments)
    assert (planned.parts, planned.parts_done) == (whole.planned_load_parts, 0)
    assert planned.expected_from == "the speed of whole"
    assert not (tmp_path / "planned").exists()


def test_a_plan_without_an_earlier_run_says_the_least_that_the_arithmetic_takes(request_for, listener, tmp_path):
    planned = plan(request_for(tmp_path / "alone" / "planned"), listener)
    assert planned.expected_from.startswith("at least this, the arithmetic alone")
    assert planned.expected_s >= 0


def test_max_tokens_takes_whole_trajectories(request_for, listener, tmp_path):
    result = measure(request_for(tmp_path / "run", max_tokens=1000), listener)
    manifest = read_manifest(tmp_path / "run")
    assert result.tokens_logical <= 1000
    (file,) = manifest.corpus.files
    assert file.rows == 24 == file.kept + file.refused + file.not_taken
    assert file.kept == result.trajectories


def test_a_corpus_is_looked_for_once(request_for, listener, tmp_path, monkeypatch):
    """A branch of the hub may move between two questions; one answer is checked and read."""
    request = request_for(tmp_path / "run")
    asked, found = [], files.located
    monkeypatch.setattr(files, "located", lambda given: asked.append(given) or found(given))
    begin.prepare(request, listener)
    assert asked == [str(one) for one in request.corpus]
