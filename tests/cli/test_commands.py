"""The flags are frozen, every command has help and stands in the docs."""

import os
import pty
import re
import shlex
import subprocess
import sys

import pytest
import typer

from pipelines.write_docs import commands_text, verbs
from routing.cli.app import app
from routing.cli.examples import EXAMPLES
from tests.conftest import REPOSITORY
from tests.stores import write_tiny_run

COMMANDS = verbs(typer.main.get_command(app))

FLAGS = {
    "allowance": "--allowances --batch-tokens --ep --for --json --layer",
    "check": "RUNS TABLE --json --placement",
    "doctor": "--json",
    "estimate": (
        "WAVE --allowances --baseline-bytes --budget-gb --compare --json --lower-by-observed --mode --model --outside-bytes"
        " --peak-bytes --per-layer --placement --strict"
    ),
    "explain": "TABLE --json --wave",
    "fit": "RUNS --batch-tokens --ep --floor --json --order --out --per-layer --placement",
    "import counts": "FILES --engine --json --label --model --num-experts --num-tokens --out --top-k",
    "import routes": (
        "FILES --domain --drop-last --drop-shared-expert --engine --fill-prefixes --json --label --layers --model --out"
        " --segment-tokens --skip-bad"
    ),
    "imbalance": "RUNS --batch-tokens --by --ep --json --order --placement --view",
    "measure": (
        "CORPUS POLICY --adapter --base-out --device --device-map --domain --dtype --format --json --label --max-tokens"
        " --on-bad-line --out --plan --revision --segment-tokens --skip-bad --tokenizer"
    ),
    "placement suggest": "RUN --batch-tokens --ep --json --out",
    "refresh": "PLAN --json --markdown --write",
    "repair": "RUN --dry-run --json",
    "replay": "WAVE --allowances --json --model --recorded",
    "report": "RUNS --against --allowances --json --markdown --out --peaks --waves",
    "show": "RUNS --json",
    "sql": "RUNS_AND_QUERY --batch-tokens --ep --format --json --memory-gb --order --placement --time-s --view",
    "verify": "PATHS --json --placement --runs",
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


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_ends_its_help_with_an_example_that_it_takes(invoke, name):
    command = shlex.split(EXAMPLES[name].partition(" > ")[0])
    verb = name.split()
    assert command[: 1 + len(verb)] == ["routing", *verb]
    COMMANDS[name].make_context(name, command[1 + len(verb) :])  # read as the program reads it, and not run
    code, out, _ = invoke(*verb, "--help")
    assert (code, out.rstrip().splitlines()[-2:]) == (0, ["  Example:", f"    {EXAMPLES[name]}"])


def test_the_command_reference_is_what_the_program_says():
    assert (REPOSITORY / "docs" / "commands.md").read_text() == commands_text(), "run `make docs`"


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "routing", "--help"], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0
    assert all(name.split()[0] in done.stdout for name in COMMANDS)


def test_bash_completes_verbs_and_flags():
    for words, found in ((["routing", "imb"], ["imbalance"]), (["routing", "imbalance", "--ba"], ["--batch-tokens"])):
        asked = {"_ROUTING_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        code = "import sys; sys.argv = ['routing']; from routing.cli import command; command()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env={**os.environ, **asked}, check=False
        )
        assert (done.returncode, done.stdout.split()) == (0, found)


def _shown(run, *, terminal, **environment):
    """What `routing show` writes to a pipe or a terminal."""
    command = [sys.executable, "-m", "routing", "show", str(run)]
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    if not terminal:
        return subprocess.run(command, cwd=REPOSITORY, env={**kept, **environment}, capture_output=True, check=True).stdout
    ours, theirs = pty.openpty()
    subprocess.run(command, cwd=REPOSITORY, env={**kept, "TERM": "xterm-256color", **environment}, stdout=theirs, check=True)
    os.close(theirs)
    found = b""
    try:
        while chunk := os.read(ours, 65_536):
            found += chunk
    except OSError:  # how Linux ends a terminal that nobody writes to any more
        pass
    os.close(ours)
    return found


def test_no_colour_reaches_a_pipe_or_who_asks_for_none(tmp_path):
    run = tmp_path / "run"
    write_tiny_run(run, paths=[[0]], segment_tokens=[10], loads={(0, 0): [6, 4]}, num_experts=2, top_k=1)
    assert b"\x1b" not in _shown(run, terminal=False)
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", _shown(run, terminal=True, NO_COLOR="1"))
