"""The flags are frozen, every command has help and stands in the docs."""

import subprocess
import sys

import pytest
import typer

from pipelines.write_docs import commands_text, verbs
from routing.cli.app import app
from tests.conftest import REPOSITORY

COMMANDS = verbs(typer.main.get_command(app))

FLAGS = {
    "check": "RUNS TABLE --json",
    "estimate": (
        "WAVE --allowances --baseline-bytes --budget-gb --compare --json --lower-by-observed --mode --model --outside-bytes"
        " --peak-bytes --per-layer --strict"
    ),
    "fit": "RUNS --batch-tokens --ep --json --order --out --per-layer",
    "import counts": "FILES --engine --json --label --model --num-experts --num-tokens --out --top-k",
    "import routes": (
        "FILES --domain --drop-last --drop-shared-expert --engine --fill-prefixes --json --label --layers --model --out"
        " --segment-tokens --skip-bad"
    ),
    "imbalance": "RUNS --batch-tokens --by --ep --json --order --view",
    "measure": (
        "CORPUS POLICY --device --domain --dtype --format --json --label --max-tokens --on-bad-line --out --plan --segment-tokens"
        " --tokenizer"
    ),
    "refresh": "PLAN --json --markdown --write",
    "replay": "WAVE --allowances --json --model --recorded",
    "report": "RUNS --against --allowances --json --markdown --out --peaks --waves",
    "show": "RUNS --json",
    "wave": "--adapter-rank --cp --ep --lengths --model",
}


def _flags(command):
    return sorted(one.name.upper() if one.param_type_name == "argument" else max(one.opts, key=len) for one in command.params)


def test_a_flag_is_added_or_removed_on_purpose():
    found = {name: _flags(command) for name, command in COMMANDS.items()}
    assert found == {name: sorted(flags.split()) for name, flags in FLAGS.items()}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_flag_has_help(name):
    assert COMMANDS[name].help
    assert [one.name for one in COMMANDS[name].params if not one.help] == []


def test_the_command_reference_is_what_the_program_says():
    assert (REPOSITORY / "docs" / "commands.md").read_text() == commands_text(), "run `make docs`"


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "routing", "--help"], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0
    assert all(name.split()[0] in done.stdout for name in COMMANDS)
