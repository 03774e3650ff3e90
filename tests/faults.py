"""docs/reliability.md is written by the tests: a row for each fault that a mark names, taken from a test that passed.

    @pytest.mark.fault("a full disk", how="os.fsync raises ENOSPC", tries=3, outcome="exit 4, nothing replaced")

`tries` is how often the test injects the fault, over all its parameters. `make docs` runs the marked tests and writes the
rows; tests/test_reliability.py holds the committed page against the marks.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from routing.store.files import write_bytes

PAGE = Path("docs/reliability.md")
HEADING = ("| fault | how it is injected | tries | what the program did | test |", "|---|---|---|---|---|")
_PROPERTY = "fault"  # reports carry it from the processes of pytest-xdist to the one that writes


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One row; `test` is the file, `line` where the test stands in it, for the order of the rows."""

    fault: str
    how: str
    tries: int
    outcome: str
    test: str
    line: int

    @property
    def row(self) -> str:
        """The row as Markdown."""
        cells = (self.fault, self.how, f"{self.tries:,}", self.outcome, f"[{Path(self.test).stem}](../{self.test})")
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What this process was given to run: the faults that are marked, and the files of all its tests."""

    faults: frozenset[Fault]
    files: frozenset[Path]


COLLECTED = pytest.StashKey[Collected]()


def fault_of(item: pytest.Item, mark: pytest.Mark) -> Fault:
    """What a mark says; UsageError names the test where it says it in another way than the module's docstring shows."""
    test, line, _ = item.location
    names = ("how", "outcome", "tries")
    texts = (*mark.args, mark.kwargs.get("how"), mark.kwargs.get("outcome"))
    is_text = len(mark.args) == 1 and all(isinstance(one, str) and one.strip() and not set(one) & set("|\n") for one in texts)
    tries = mark.kwargs.get("tries")
    if tuple(sorted(mark.kwargs)) != names or not is_text or type(tries) is not int or tries < 1:
        raise pytest.UsageError(f"{item.nodeid}: a fault's mark is one text, how=text, tries=number, outcome=text; no | in them")
    return Fault(fault=mark.args[0], **mark.kwargs, test=test, line=line or 0)


def rows_of(faults: Iterable[Fault]) -> list[str]:
    """The table's rows, in the order of the tests."""
    return [one.row for one in sorted(set(faults), key=lambda one: (one.test, one.line, one.fault))]


def table_of(page: str) -> list[str]:
    """The rows that a page holds."""
    return list(takewhile(str, page.partition("\n".join(HEADING) + "\n")[2].splitlines()))


def with_table(page: str, rows: list[str]) -> str:
    """The page with its table replaced; its other words stay."""
    old, new = ("".join(f"{row}\n" for row in (*HEADING, *some)) for some in (table_of(page), rows))
    assert old in page, "the page has no table"
    return page.replace(old, new)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-faults", action="store_true", help=f"rewrite the table of {PAGE} from the marked tests that pass")


@pytest.hookimpl(tryfirst=True)  # before -k and -m take tests away
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """UsageError where two marks name one fault and differ; the cases of one test share theirs."""
    found: dict[str, Fault] = {}
    for item in items:
        for fault in (fault_of(item, mark) for mark in item.iter_markers("fault")):
            if found.setdefault(fault.fault, fault) != fault:
                raise pytest.UsageError(f"{item.nodeid}: {fault.fault!r} has its row from {found[fault.fault].test} already")
            item.user_properties.append((_PROPERTY, asdict(fault)))
    session.config.stash[COLLECTED] = Collected(faults=frozenset(found.values()), files=frozenset(item.path for item in items))


class Writer:
    """Hears every test's end and writes the table; a fault whose tests did not all pass has no row, which is said."""

    def __init__(self, root: Path) -> None:
        self.page = root / PAGE
        self.passed: set[Fault] = set()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                found = Fault(**value)  # type: ignore[arg-type]
                if not report.passed:
                    self.failed.add(found.fault)
                elif report.when == "call":
                    self.passed.add(found)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        held = [one for one in self.passed if one.fault not in self.failed]
        write_bytes(self.page, with_table(self.page.read_text(), rows_of(held)).encode())
        terminalreporter.write_line(f"{self.page}: {len(held)} rows written")
        for fault in sorted(self.failed):
            terminalreporter.write_line(f"no row, its test did not pass: {fault}")


def pytest_configure(config: pytest.Config) -> None:
    is_running = not (config.getoption("collectonly") or hasattr(config, "workerinput"))
    if is_running and config.getoption("--write-faults"):
        config.pluginmanager.register(Writer(config.rootpath))
