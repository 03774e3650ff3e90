"""Commands killed with -9, after a random time or at a random call of the writer of our files, in turn.

What they left is whole, and the same command ends like an untouched one.
Processes are forked from one that has the slow imports behind it, so that a kill finds the command at work.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from routing.store.allowances import read_table
from routing.store.run import MANIFEST_NAME, open_run, read_manifest
from tests.faulty_disk import KILL, FaultyDisk, is_leftover
from tests.policies import write_tiny_policy

NUM_TRAJECTORIES, NUM_TOKENS, TOKENS_PER_PART = 24, 120, 300  # three trajectories a part
_CALLS = "num_calls"  # a file that a process leaves: how often it called the writer
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.preloaded"])


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line in `folder`, how to begin it anew, whether it is over, and what it ends with.

    `look` says in a word how far a killed one came, and fails where what it left is not whole.
    """

    folder: Path
    arguments: tuple[str, ...]
    begin: Callable[[], object]
    is_over: Callable[[], bool]
    look: Callable[[], str]
    result: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Killings:
    """How often a command was killed, by how far it had come, and how often it was run in all."""

    seen: Counter[str]
    num_runs: int


def kill_at_random(command: Command, *, num_kills: int, draw: random.Random) -> Killings:
    """Runs the command untouched, then kills it and goes on with it; it must end with the same result."""
    command.begin()
    began = time.monotonic()
    _run_to_the_end(command)
    elapsed_s, expected = time.monotonic() - began, command.result()
    num_calls = int((command.folder / _CALLS).read_text())
    command.begin()
    seen: Counter[str] = Counter()
    num_runs = 2
    while seen.total() < num_kills:
        num_runs += 1
        if num_runs % 2:
            exitcode = _run_for(command, draw.uniform(0, elapsed_s))
        else:
            exitcode = _run_until(command, draw.randint(1, num_calls))
        if exitcode == -signal.SIGKILL:
            seen[command.look()] += 1
        else:
            assert exitcode == 0, _log(command)
            assert command.result() == expected
        if command.is_over():
            command.begin()
    _run_to_the_end(command)
    assert command.result() == expected
    left = [path for path in command.folder.rglob("*") if is_leftover(path) and (path.parent / MANIFEST_NAME).exists()]
    assert left == []
    return Killings(seen=seen, num_runs=num_runs)


def commands(folder: Path) -> dict[str, Command]:
    """Every verb that writes, over a tiny policy and a small corpus made in `folder`; a run to fit is measured on the way."""
    write_tiny_policy(folder / "policy")
    ids = ([(7 * row + place * place) % 256 for place in range(NUM_TOKENS)] for row in range(NUM_TRAJECTORIES))
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids))
    places = ((unit, layer, expert) for unit in range(400) for layer in range(4) for expert in range(8))
    rows = (7, 6, 5, 4, 4, 3, 2, 1)  # 32 of 16 tokens, top-2, turned by unit and layer
    counts = [f"u{unit},{layer},{expert},{rows[(unit + 3 * layer + expert) % 8]}\n" for unit, layer, expert in places]
    (folder / "counts.csv").write_text("unit,layer,expert,routed_rows\n" + "".join(counts))
    size = {"ep": [2, 4], "batch_tokens": [600, 200]}
    planned = {"out": "runs/planned", "label": "planned", "policy": "policy", "corpus": ["corpus.jsonl"], "segment_tokens": 64}
    (folder / "plan.yaml").write_text(json.dumps({"table": "planned.yaml", **size, "runs": [planned]}))
    measured = _measuring(folder, "measured")
    _run_to_the_end(measured)
    return {
        "measure": _measuring(folder, "killed"),
        "import": _importing(folder),
        "fit": _fitting(folder),
        "refresh": _refreshing(folder),
    }


def _measuring(folder: Path, name: str) -> Command:
    out = folder / "runs" / name
    return Command(
        folder=folder,
        arguments=("measure", "policy", "corpus.jsonl", "--out", f"runs/{name}", "--segment-tokens", "64"),
        begin=lambda: shutil.rmtree(out, ignore_errors=True),
        is_over=lambda: _state(out) == "finished",
        look=lambda: _how_far(out),
        result=lambda: open_run(out).manifest.content_hash,
    )


def _importing(folder: Path) -> Command:
    out = folder / "runs" / "imported"
    flags = ("--num-tokens", "16", "--top-k", "2", "--out", "runs/imported")
    return Command(
        folder=folder,
        arguments=("import", "counts", "counts.csv", *flags),
        begin=lambda: shutil.rmtree(out, ignore_errors=True),
        is_over=lambda: _state(out) == "finished",  # an import replaces no finished run
        look=lambda: _how_far(out),
        result=lambda: open_run(out).manifest.content_hash,
    )


def _fitting(folder: Path) -> Command:
    table = folder / "fitted.yaml"
    flags = ("--ep", "2,4", "--batch-tokens", "600,200", "--out", table.name)
    return Command(
        folder=folder,
        arguments=("fit", "runs/measured", *flags),
        begin=lambda: table.unlink(missing_ok=True),
        is_over=table.exists,
        look=lambda: _table(table),
        result=lambda: read_table(table).entries,
    )


def _refreshing(folder: Path) -> Command:
    out, table = folder / "runs" / "planned", folder / "planned.yaml"

    def begin() -> None:
        shutil.rmtree(out, ignore_errors=True)
        for path in (table, *folder.glob("runs/plan*.made.json"), *folder.glob("runs/plan.refresh.yaml*")):
            path.unlink(missing_ok=True)

    return Command(
        folder=folder,
        arguments=("refresh", "plan.yaml", "--write"),
        begin=begin,
        is_over=table.exists,
        look=lambda: f"{_how_far(out)}, {_table(table)}",
        result=lambda: (open_run(out).manifest.content_hash, read_table(table).entries),
    )


def _state(out: Path) -> str:
    return read_manifest(out).state if (out / MANIFEST_NAME).exists() else "nothing yet"


def _how_far(out: Path) -> str:
    """Opens what is there, every part verified."""
    if _state(out) == "nothing yet":
        return "nothing yet"
    run = open_run(out)
    return "finished" if run.manifest.state == "finished" else "some parts" if run.part_paths("loads") else "no loads yet"


def _table(path: Path) -> str:
    return f"table of {len(read_table(path).entries)} entries" if path.exists() else "no table yet"


def _run_for(command: Command, seconds: float) -> int | None:
    """The exit code of the command, killed where it still runs after `seconds`."""
    process = _started(command, die_at=None)
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def _run_until(command: Command, call: int) -> int | None:
    """The exit code of the command, killed at its `call`-th call of the writer where it comes so far; 0 counts them only."""
    process = _started(command, die_at=call)
    process.join()
    return process.exitcode


def _run_to_the_end(command: Command) -> None:
    assert _run_until(command, 0) == 0, _log(command)


def _started(command: Command, *, die_at: int | None) -> multiprocessing.process.BaseProcess:
    process = _SERVER.Process(target=_run, args=(command.folder, command.arguments, die_at))
    process.start()
    return process


def _log(command: Command) -> str:
    return (command.folder / "log").read_text()


def _run(folder: Path, arguments: tuple[str, ...], die_at: int | None) -> None:
    """In the forked process: the command line, in small parts, its words to a file."""
    from routing.cli import command
    from routing.stages import begin

    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    begin.TOKENS_PER_PART = TOKENS_PER_PART
    sys.argv = ["routing", *arguments]
    if die_at is None:
        command()
        return
    disk = FaultyDisk(KILL, die_at or 0, folder)
    try:
        with disk.mounted():
            command()
    finally:
        (folder / _CALLS).write_text(str(disk.num_calls))
