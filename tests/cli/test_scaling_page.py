"""The page on scaling out can't rot: its commands run, under a real torchrun too, and end in one and the same run."""

import json
import os
import re
import shlex
import subprocess

import pytest

from routing.stages import begin
from routing.store.run import read_manifest
from tests.conftest import REPOSITORY
from tests.policies import write_tiny_policy
from tests.test_pages import BLOCK, ENVIRONMENT

PAGE = (REPOSITORY / "docs" / "scaling.md").read_text()
COMMANDS = [line for _, block in BLOCK.findall(PAGE) for line in block.splitlines()]
TOKENS_PER_PART = 400
# Small parts, and the second worker's death in its first start, before the name of its first part is given.
SITE = f"""
import os, signal
import routing.measure.plan
routing.measure.plan.TOKENS_PER_PART = {TOKENS_PER_PART}
if (os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")) == ("1", "0"):
    rename = os.replace
    def die(old, new):
        if "loads-" in str(new):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)
    os.replace = die
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny policy and 40 trajectories of 100 tokens, by the names of the demo's."""
    made = tmp_path_factory.mktemp("scaling")
    write_tiny_policy(made / "data" / "demo" / "policy")
    rows = [{"input_ids": [(7 * row + place * place) % 256 for place in range(100)]} for row in range(40)]
    (made / "data" / "demo" / "trajectories").mkdir()
    (made / "data" / "demo" / "trajectories" / "shop.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (made / "site").mkdir()
    (made / "site" / "sitecustomize.py").write_text(SITE)
    return made


@pytest.fixture(scope="module")
def whole(folder):
    """The content hash of the run that torchrun's workers, the second of them killed once, have measured."""
    (command,) = [line for line in COMMANDS if line.startswith("torchrun ")]
    paths = os.pathsep.join([str(folder / "site"), str(REPOSITORY)])
    done = subprocess.run(
        shlex.split(command), cwd=folder, env={**ENVIRONMENT, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(folder / "runs" / "scaled")
    assert (manifest.state, manifest.planned_load_parts) == ("finished", 10)  # of four trajectories each
    return done.stderr, manifest.content_hash


@pytest.mark.fault(
    "a worker of torchrun is killed with -9 while it writes a part",
    how="torchrun with two workers and --max-restarts 1, of which the second kills itself in the rename of a part",
    tries=1,
    outcome="torchrun starts both again; they remove what was torn and measure the rest",
)
def test_torchrun_starts_its_workers_again_and_they_go_on(whole):
    said, _ = whole
    assert "1 unfinished files of an earlier worker removed" in said
    assert all(name in said for name in ("worker 1 of 2", "worker 2 of 2"))


@pytest.mark.parametrize("command", [line for line in COMMANDS if not line.startswith("torchrun ")])
def test_every_other_command_of_the_page_ends_in_the_same_run(folder, whole, invoke, monkeypatch, command):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(begin, "TOKENS_PER_PART", TOKENS_PER_PART)
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words.pop(0) == "routing"
    code, _, err = invoke(*words)
    assert code == 0, err
    manifest = read_manifest(folder / words[words.index("--out") + 1])
    assert (manifest.state, manifest.content_hash) == ("finished", whole[1])
    assert manifest.settings.layers_by_device == ({"cpu": 4} if "--device-map" in words else None)


def test_every_link_of_the_page_leads_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [target for target in targets if not (REPOSITORY / "docs" / target).exists()] == []


def test_the_pages_sbatch_lines_are_of_the_script_and_its_flags_are_the_programs():
    lines = [line.partition("#")[0].split() for line in PAGE.splitlines() if line.startswith("    sbatch ")]
    assert len(lines) == 3
    for line in lines:
        place = line.index("pipelines/slurm_measure.sbatch")
        assert line[place + 1 :] in ([], ["--device-map", "auto"])
