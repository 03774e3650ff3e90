"""The command line: verbs to stages. The only room that prints or exits."""

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """The entry point. An interrupt while the verbs are still being loaded ends in one line, as it does later."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _leave_at_once)
    from routing.cli.app import main as run

    run()


def _leave_at_once(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"routing: interrupted; nothing was begun\n")
    os._exit(130)
