"""The command line, run in the test's own process."""

import sys

import pytest

from routing.cli import main


@pytest.fixture
def invoke(monkeypatch, capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["routing", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = left.code
        out, err = capsys.readouterr()
        return code, out, err

    return call
