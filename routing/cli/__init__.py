"""The command line: verbs to stages. The only room that prints or exits."""

import os
import signal
from types import FrameType

__all__ = ["command", "main"]


def command() -> None:
    """The entry point of a process: once the answer is out, a signal can't tear it while the interpreter is taken down."""
    try:
        main()
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)


def main() -> None:
    """The command line. An interrupt while the verbs are still being loaded ends in one line, as it does later."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _leave_at_once)
    from routing.cli.app import main as run

    run()


def _leave_at_once(_signal: int, _frame: FrameType | None) -> None:
    os.write(2, b"routing: interrupted; nothing was begun\n")
    os._exit(130)
