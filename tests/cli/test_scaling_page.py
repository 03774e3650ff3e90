"""The page on scaling out can't rot: its commands run, under a real torchrun too, and end in one and the same run."""

import json
import os

import pytest

from routing.store.run import read_manifest
from tests.conftest import REPOSITORY
from tests.pages import read_page, run_page
from tests.policies import write_tiny_policy

# Small parts, and the second worker's death in its first start, before the name of its first part is given.
SITE = """
import os, signal
import routing.measure.plan
routing.measure.plan.TOKENS_PER_PART = 400
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
def printed(folder):
    """What the page's commands print; the second of torchrun's workers is killed once."""
    paths = os.pathsep.join([str(folder / "site"), str(REPOSITORY)])
    return "".join(run_page("docs/scaling.md", folder, before=f"PYTHONPATH={paths} "))


@pytest.mark.fault(
    "a worker of torchrun is killed with -9 while it writes a part",
    how="torchrun with two workers and --max-restarts 1, of which the second kills itself in the rename of a part",
    tries=1,
    outcome="torchrun starts both again; they remove what was torn and measure the rest",
)
def test_torchrun_starts_its_workers_again_and_they_go_on(printed):
    assert "1 unfinished files of an earlier worker removed" in printed
    assert all(name in printed for name in ("worker 1 of 2", "worker 2 of 2"))


def test_every_command_of_the_page_ends_in_the_same_run(folder, printed):
    found = {path.name: read_manifest(path) for path in (folder / "runs").iterdir()}
    assert {(one.state, one.planned_load_parts) for one in found.values()} == {("finished", 10)}  # of four trajectories each
    assert len({one.content_hash for one in found.values()}) == 1
    spread = {name: one.settings.layers_by_device for name, one in found.items()}
    assert spread == {"scaled": None, "by-hand": None, "spread": {"cpu": 4}}


def test_the_pages_sbatch_lines_are_of_the_script_and_its_flags_are_the_programs():
    page = read_page("docs/scaling.md").splitlines()
    lines = [line.partition("#")[0].split() for line in page if line.startswith("    sbatch ")]
    assert len(lines) == 3
    for line in lines:
        place = line.index("pipelines/slurm_measure.sbatch")
        assert line[place + 1 :] in ([], ["--device-map", "auto"])
