"""What docs/faq.md lists is what the program says: warnings, what binds, statuses, exit codes."""

import re
from typing import get_args

import pytest

from routing.core import errors
from routing.core.allowance import Status
from tests.conftest import REPOSITORY
from tests.pages import read_page

TEXT = read_page("docs/faq.md")
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "routing").rglob("*.py"))


def _section(heading):
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def _names(section):
    return re.findall(r"`(\w[\w ]*)`", "\n".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))


@pytest.mark.parametrize("code", _names(_section("Which warnings matter?")))
def test_the_program_warns_of_what_the_page_explains(code):
    assert re.search(rf"\"{code}[\":]|f\"{code}:", SOURCES)


def test_every_warning_of_a_fit_is_explained():
    fitted = (REPOSITORY / "routing" / "fit" / "sentences.py").read_text(encoding="utf-8")
    assert set(re.findall(r"f?\"(\w+_\w+): ", fitted)) <= set(_names(_section("Which warnings matter?")))


@pytest.mark.parametrize("word", _names(_section("Why is the allowance above everything that was measured?"))[1:])
def test_what_binds_is_a_word_of_the_fit(word):
    assert f'"{word}' in SOURCES


def test_every_status_is_explained():
    section = _section("What does `status` say?")
    assert [status for status in get_args(Status) if f"`{status}`" not in section] == []


def test_the_exit_codes_are_those_of_the_errors():
    kinds = {kind.exit_code for kind in errors.RoutingError.__subclasses__()}
    assert {int(code) for code in re.findall(r"(\d+) [a-z]", _section("What do exit codes mean?"))} == kinds | {0, 130}
