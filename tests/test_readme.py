"""The README can't rot: its commands run, its table is the committed one, what it says of make and the demo is so."""

import re
import shlex

from pipelines.demo import COMMANDS
from routing.store.allowances import read_table
from tests.conftest import REPOSITORY
from tests.pages import blocks_of, read_page, run_page

README = read_page("README.md")
LINES = [line.split("  #")[0].strip() for block in blocks_of("README.md", README) for line in block.code.splitlines()]
ROUTING_COMMANDS = [line.removeprefix("routing ") for line in LINES if line.startswith("routing ")]
# A test measures less than the demo does, and enough for one batch of 50k packed tokens.
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
    run_page("README.md", tmp_path, demo_tokens=TEST_TOKENS)
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000


def test_the_readmes_table_is_the_committed_one():
    rows = re.findall(r"^\| (\d+) \| (\d\.\d) \|", README, re.MULTILINE)
    committed = [(str(entry.ep), str(entry.allowance)) for entry in read_table(REPOSITORY / "allowances.yaml").entries]
    assert rows == committed
