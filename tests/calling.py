"""The command line in the test's own process."""

import sys
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from routing.cli import main


def call_routing(arguments: Sequence[str]) -> int:
    """Runs it with `arguments`, on the standard streams as they are; its exit code."""
    with patch.object(sys, "argv", ["routing", *arguments]), pytest.raises(SystemExit) as left:
        main()
    return left.value.code
