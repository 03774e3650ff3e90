"""The batch script can't rot: bash parses it, its command line is the program's, and what it does with an exit code is tried.

There is no Slurm here: `srun` and `scontrol` are stand-ins, which set what Slurm's manual says they set.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.policies import write_tiny_policy
from tests.test_pages import ENVIRONMENT

SCRIPT = REPOSITORY / "pipelines" / "slurm_measure.sbatch"
# Takes its own options off and runs the rest as each task of a step.
SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
export BATCH_SHELL=$PPID
status=0
for ((task = 0; task < TASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NUM_TASKS=$TASKS "$@" || status=$?
done
exit $status
"""


@pytest.fixture
def submit(tmp_path):
    """Runs the script as the first task of an array of two; keywords are executables put before all others on the path."""
    (tmp_path / "bin").mkdir()

    def run(*flags, tasks=2, policy="POLICY", corpus="*.jsonl", **executables):
        executables = {"srun": SRUN, "scontrol": '#!/bin/sh\necho "$@" >> requeued\n', **executables}
        for name, text in executables.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)
        of_slurm = {"SLURM_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "2", "TASKS": str(tasks)}
        environment = {**ENVIRONMENT, **of_slurm, "POLICY": policy, "CORPUS": corpus, "OUT": "run"}
        environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
        return subprocess.run(
            ["bash", str(SCRIPT), *flags], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_the_script_is_bash():
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, check=False).stderr == b""


def test_the_programs_own_command_line_takes_what_the_script_gives_it(submit, tmp_path):
    policy = write_tiny_policy(tmp_path / "policy")
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps({"input_ids": [ord(name[0]), *range(30)]}) + "\n")
    done = submit("--plan", "--json", tasks=1, policy=str(policy))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["run"], answer["trajectories"], answer["tokens_logical"]) == ("run", 2, 62)


def test_every_task_of_every_array_task_is_a_worker_of_its_own(submit, tmp_path):
    told = submit(routing='#!/bin/sh\necho "$SLURM_ARRAY_TASK_ID $SLURM_PROCID $SLURM_STEP_NUM_TASKS" "$@"\n', corpus="one.jsonl")
    line = "measure POLICY one.jsonl --out run"
    assert told.stdout.splitlines() == [f"0 0 2 {line}", f"0 1 2 {line}"]


@pytest.mark.parametrize(("status", "is_queued"), [(130, True), (0, False), (2, False), (4, False)])
def test_only_what_was_interrupted_is_queued_again(submit, tmp_path, status, is_queued):
    done = submit(routing=f"#!/bin/sh\nexit {status}\n")
    assert done.returncode == status
    queued = Path(tmp_path / "requeued")
    assert (queued.read_text() if queued.exists() else "") == ("requeue 77\n" if is_queued else "")


def test_a_warning_of_slurm_leaves_the_shell_to_queue_the_task_again(submit, tmp_path):
    """SIGTERM reaches the shell too where a whole job is signalled; the worker then ends with 130."""
    done = submit(tasks=1, routing="#!/usr/bin/env bash\ntrap 'exit 130' TERM\nkill -TERM $BATCH_SHELL $$\nsleep 20\n")
    assert (done.returncode, (tmp_path / "requeued").read_text()) == (130, "requeue 77\n")


@pytest.mark.parametrize("name", ["POLICY", "CORPUS", "OUT"])
def test_what_the_script_needs_is_said_where_it_is_missing(name):
    environment = {key: value for key, value in os.environ.items() if key not in ("POLICY", "CORPUS", "OUT")}
    given = {key: "x" for key in ("POLICY", "CORPUS", "OUT") if key != name}
    done = subprocess.run(
        ["bash", str(SCRIPT)], env={**environment, **given}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert re.search(rf"{name}: [a-z]", done.stderr)
