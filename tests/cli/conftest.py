"""The command line, run in the test's own process."""

import pytest

from tests.calling import call_routing


@pytest.fixture
def invoke(capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = call_routing([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call
