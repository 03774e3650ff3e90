"""Pages as programs: every fenced block of a Markdown page is run in order, and what it prints is held to what the page shows.

The kinds of blocks, named behind the three backticks:
    console   commands behind `$ `, each followed by what a terminal shows of it, warnings too
    sh        commands; so is `bash`, and a block without a name
    python    a program
    text      what a terminal shows of the sh block before it, or stdout of the python block before it
Nothing else is taken. A block below a line `*Not run: REASON.*` is only read, and so is its text. What may vary between two
runs of a block is elapsed time, hashes and points in time, and what the page leaves out with `...` (a line of it: any lines).
Behind `measured` (```console measured) a number may also be off by one part in fifty: another processor rounds a router's
logits otherwise. Two commands are run otherwise than they stand: the demo's corpus is measured up to some tokens where a
command names no `--max-tokens`, and `make TARGET` only has to be a target.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.calling import call_routing
from tests.conftest import REPOSITORY

# The log is of its dates. Pages that a test of their own runs, beside what it says of them, are run by no other.
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md") if page.name != "LOG.md"))
RUN_BY = {
    "README.md": "tests/test_readme.py",
    "docs/scaling.md": "tests/cli/test_scaling_page.py",
    "docs/training_loop.md": "tests/cli/test_training_loop.py",
}

Change = Callable[[str], str]
DEMO_CORPUS = "data/demo/trajectories/shop.jsonl"
KINDS = ("console", "sh", "python", "text")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})", re.MULTILINE)
_NOT_RUN = re.compile(r"^\*Not run: (.+)\.\*$")
_FORM = re.compile(r"^    (routing .*)$", re.MULTILINE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\]*\"")  # where a shell changes nothing
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_VARIES = (
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b"), r"\d+(?:\.\d+)? (?:ms|s|min|h)"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?Z?"), r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?Z?"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b"), r"[0-9a-f]{8,64}"),
)
_MOST_OFF = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block; `line` is the 1-based line of its fence, `not_run` why it is only read, None where it is run."""

    page: str
    line: int
    kind: str
    code: str
    is_measured: bool = False
    not_run: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_page(page: str) -> str:
    """The text of a page by its path from the repository's root."""
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(page: str, text: str) -> tuple[Block, ...]:
    """Every fenced block in order; AssertionError names the line of one that no reader of blocks would run."""
    blocks: list[Block] = []
    for found in _FENCE.finditer(text):
        name, *how = found[1].split() or ["sh"]
        name = "sh" if name == "bash" else name
        above = text[: found.start()].rstrip().rpartition("\n")[2]
        reason = _NOT_RUN.match(above)
        line = text.count("\n", 0, found.start()) + 1
        not_run = reason[1] if reason else blocks[-1].not_run if blocks and name == "text" else None
        block = Block(page=page, line=line, kind=name, code=found[2], is_measured=how == ["measured"], not_run=not_run)
        is_known = name in KINDS and how in ([], ["measured"])
        assert is_known, f"{block.place}: a block of {found[1]!r}; there are {KINDS}"
        is_shown = bool(blocks) and blocks[-1].kind in ("sh", "python")
        assert name != "text" or is_shown, f"{block.place}: text that no sh or python block before it prints; indent a formula"
        blocks.append(block)
    fences = [text.count("\n", 0, fence.start()) + 1 for fence in _ANY_FENCE.finditer(text)]
    assert len(fences) == 2 * len(blocks), f"{page}: a fence that opens or closes no block of ours, among lines {fences}"
    return tuple(blocks)


def forms_of(text: str) -> tuple[str, ...]:
    """Indented commands: forms that the command line must take, run by nobody."""
    return tuple(found.split("  ")[0] for found in _FORM.findall(text))


def run_page(page: str, folder: Path, *, demo_tokens: str = "20k", before: str = "") -> tuple[str, ...]:
    """Runs a page's blocks in `folder`; what each printed. Of the demo's corpus `demo_tokens` are measured.

    `before` stands before every command: variables of its environment, which make it a process of its own.

    AssertionError names the place of the first block that fails or prints something else than the page shows.
    """

    def change(line: str) -> str:
        if line.startswith("make "):
            return "true"
        is_whole = "routing measure" in line and DEMO_CORPUS in line and "--max-tokens" not in line
        return f"{before}{line} --max-tokens {demo_tokens}" if is_whole else f"{before}{line}"

    printed: list[str] = []
    for block in blocks_of(page, read_page(page)):
        if block.not_run is not None:
            printed.append("")
        elif block.kind == "text":
            assert_shown(block, block.code, printed[-1])
            printed.append(printed[-1])
        else:
            printed.append({"console": _run_console, "sh": _run_sh, "python": _run_python}[block.kind](block, folder, change))
    return tuple(printed)


def assert_shown(block: Block, shown: str, printed: str) -> None:
    """AssertionError where `printed` is not what the page shows, but for what may vary."""
    numbers: list[str] = []
    pattern = "".join(_pattern_of(line, numbers if block.is_measured else None) for line in _lines(shown))
    found = re.fullmatch(pattern, "".join(_lines(printed)))
    assert found, f"{block.place}: the page shows\n{shown}\nprinted was\n{printed}"
    for expected, actual in zip(numbers, found.groups(), strict=True):
        is_near = abs(_value(expected) - _value(actual)) <= _MOST_OFF * _value(expected)
        assert is_near, f"{block.place}: the page shows {expected}, printed was {actual}"


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _lines(text: str) -> list[str]:
    return [f"{line.rstrip()}\n" for line in text.rstrip().splitlines()]


def _pattern_of(line: str, numbers: list[str] | None) -> str:
    """A regular expression for a shown line; the numbers that are compared by value go to `numbers` and are groups."""
    if line == "...\n":
        return r"(?:.*\n)*?"
    for varying, pattern in _VARIES:
        if found := varying.search(line):
            return _pattern_of(line[: found.start()], numbers) + pattern + _pattern_of(line[found.end() :], numbers)
    before, dots, after = line.partition("...")
    if dots:
        return _pattern_of(before, numbers) + ".*" + _pattern_of(after, numbers)
    if numbers is None:
        return re.escape(line)
    pattern = ""
    for place, part in enumerate(re.split(f"({_NUMBER})", line)):
        is_number = place % 2 == 1 and ("." in part or _value(part) * _MOST_OFF >= 1)  # a smaller whole one can't be off
        numbers += [part] * is_number
        pattern += f"({_NUMBER})" if is_number else re.escape(part)
    return pattern


def _run_console(block: Block, folder: Path, change: Change) -> str:
    """Command by command, since each is followed by what it prints."""
    opening, *rest = re.split(r"^\$ (.*)\n", block.code, flags=re.MULTILINE)
    assert not opening, f"{block.place}: a console block begins with a command behind `$ `"
    printed = []
    for command, shown in zip(rest[::2], rest[1::2], strict=True):
        printed.append(_run_command(block, change(command), folder))
        assert_shown(block, shown, printed[-1])
    return "".join(printed)


def _run_sh(block: Block, folder: Path, change: Change) -> str:
    """Line by line where every line is a command of ours by itself, else by one shell."""
    lines = [change(line.partition("  #")[0].rstrip()) for line in block.code.splitlines()]
    if all(_words(line) for line in lines):
        return "".join(_run_command(block, line, folder) for line in lines)
    return _run_shell(block, "\n".join(lines), folder)


def _run_python(block: Block, folder: Path, _change: Change) -> str:
    code = compile("\n" * block.line + block.code, str(REPOSITORY / block.page), "exec")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings(action="ignore"):
        exec(code, {"__name__": "__main__"})
    return out.getvalue()


def _run_command(block: Block, command: str, folder: Path) -> str:
    """What a terminal shows of one line. Ours run in this process: to start another takes a second."""
    words = _words(command)
    if words is None:
        return _run_shell(block, command, folder)
    arguments, target = words
    terminal = io.StringIO()
    out = io.StringIO() if target else terminal
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(terminal):
        code = call_routing(arguments)
    assert code == 0, f"{block.place}: {command}: exit code {code}: {terminal.getvalue()}"
    if target:
        (folder / target).write_text(out.getvalue())
    return terminal.getvalue()


def _words(line: str) -> tuple[list[str], str | None] | None:
    """(arguments, the file that stdout goes to) of a line that calls our command alone; None of any other."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quotation that a later line closes
        return None
    target = words[-1] if words[-2:-1] == [">"] else None
    words = words[:-2] if target else words
    is_for_a_shell = set(_QUOTED.sub("", line)) & set("$*~`\\") or any(re.fullmatch(r"[|&;<>]+", word) for word in words)
    return None if words[:1] != ["routing"] or is_for_a_shell else (words[1:], target)


def _run_shell(block: Block, code: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.place}: exit code {done.returncode}: {done.stdout}"
    return done.stdout
