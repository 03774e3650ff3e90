"""What people wrote stays in their files: a run, a page and every answer hold hashes, counts and places alone."""

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tests.conftest import REPOSITORY
from tests.policies import write_tiny_policy

SECRET = "Yusuf Rossi 19122"
# Connections are counted and refused, whatever library tries one.
NO_NETWORK = """
import socket, sys
def refuse(*_):
    open("tried", "a").write("x")
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from routing.cli import main
for arguments in COMMANDS:
    sys.argv = ["routing", *arguments]
    try:
        main()
    except SystemExit as left:
        if left.code:
            raise
"""


def _rows():
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": json.dumps({"name": SECRET})}}
    said = [{"role": "system", "content": f"Help {SECRET}."}, {"role": "user", "content": f"I am {SECRET}"}]
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": SECRET, "tool_call_id": "c"}
    yield {"messages": [*said, answer, result], "task_id": f"please find {SECRET}, who ordered a lamp last week and now wants it"}
    yield {"messages": [{"role": f"{SECRET} speaking, in a role that is longer than any role has a name for", "content": "x"}]}
    yield {"messages": [{"role": "user", "content": [{"type": "image", "image": SECRET}]}]}
    yield {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": SECRET}}]}]}
    yield {"messages": SECRET}
    yield {"messages": [{"role": "user", "content": "y" * 100}, {"role": "assistant", "content": "z" * 100}]}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """(the folder in which six verbs ran one after the other, what they printed): measured, fitted, reported, asked."""
    folder = tmp_path_factory.mktemp("private")
    write_tiny_policy(folder / "policy")
    lines = [json.dumps(row) for row in _rows()] + [f'{{"messages": "{SECRET}']
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    commands = [
        ["measure", "policy", "corpus.jsonl", "--out", "run", "--on-bad-line", "skip"],
        ["show", "run", "--json"],
        ["imbalance", "run", "--batch-tokens", "200", "--json"],
        ["fit", "run", "--batch-tokens", "200", "--out", "a.yaml", "--json"],
        ["report", "run", "--allowances", "a.yaml", "--out", "page.html", "--markdown", "pull.md", "--json"],
        ["sql", "run", "SELECT * FROM trajectories", "--json"],
    ]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    command = [sys.executable, "-c", NO_NETWORK.replace("COMMANDS", repr(commands))]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout + done.stderr


@pytest.mark.fault(
    "user text in the store, a report or an answer",
    how="a name in contents, arguments, a tool's result, a task id, a role, a part, a cut line; through six verbs",
    tries=7,
    outcome="in none of what they keep and print",
)
def test_no_text_of_a_trajectory_is_kept_or_shown(told):
    folder, printed = told
    run = folder / "run"
    assert len(json.loads((run / "manifest.json").read_text())["corpus"]["refusals"]) == 4
    kept = [path.read_text() for path in (run / "manifest.json", *(folder / name for name in ("a.yaml", "page.html", "pull.md")))]
    kept += [str(pq.read_table(path).to_pydict()) for path in run.rglob("*.parquet")]
    for text in (printed, *kept):
        assert text
        assert "Yusuf" not in text
        assert "19122" not in text


@pytest.mark.fault(
    "a network that must not be needed",
    how="six verbs over a policy in a folder, every connection refused and counted, the hub not set offline",
    tries=6,
    outcome="no connection was tried",
)
def test_a_local_policy_is_measured_without_a_connection(told):
    folder, _ = told
    assert (folder / "page.html").exists()
    assert not (folder / "tried").exists()
