"""The README can't rot: its commands run, its links lead somewhere, its table is the committed one."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.demo import COMMANDS
from routing.store.allowances import read_table
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON_BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LINES = [line.split("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
ROUTING_COMMANDS = [line.removeprefix("routing ") for line in LINES if line.startswith("routing ")]
# A test measures less than the demo does; each measurement of the README gets this size unless it names one.
TEST_TOKENS = "100k"


def test_the_readme_shows_the_demos_own_commands():
    assert [shlex.split(line) for line in ROUTING_COMMANDS[: len(COMMANDS)]] == [shlex.split(line) for line in COMMANDS]


def test_every_make_target_of_the_readme_exists():
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = [line.split()[1] for line in LINES if line.startswith("make ")]
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_every_command_of_the_readme_runs(tmp_path):
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in ROUTING_COMMANDS:
        fewer = f" --max-tokens {TEST_TOKENS}" if line.startswith("measure") and "--max-tokens" not in line else ""
        command = f"routing {line}{fewer}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
    for code in PYTHON_BLOCKS:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_every_link_of_the_readme_leads_somewhere(target):
    assert (REPOSITORY / target).exists()


def test_the_readmes_table_is_the_committed_one():
    rows = re.findall(r"^\| (\d+) \| (\d\.\d) \|", README, re.MULTILINE)
    committed = [(str(entry.ep), str(entry.allowance)) for entry in read_table(REPOSITORY / "allowances.yaml").entries]
    assert rows == committed
