"""The command line in the test's own process."""

import sys
from collections.abc import Sequence

from routing.cli import main


def call_routing(arguments: Sequence[str]) -> int:
    """Runs it with `arguments`, on the standard streams as they are; its exit code."""
    kept = sys.argv
    sys.argv = ["routing", *arguments]
    try:
        main()
    except SystemExit as left:
        assert isinstance(left.code, int)
        return left.code
    finally:
        sys.argv = kept
    return 0
