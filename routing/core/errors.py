"""The ways a command can end other than well; each carries its exit code.

0 good, 1 a check failed, 2 the user's input, 3 damaged data, 4 input/output. Messages are one line: what, where, next step.
"""


class RoutingError(Exception):
    """Any refusal of ours; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(r"\n".join(message.splitlines()))  # a name or a key in it may hold the end of a line


class CheckFailedError(RoutingError):
    """Something measured breaks a rule that must hold: conservation, distinct experts, an exceeded allowance."""

    exit_code = 1


class InputError(RoutingError):
    """What the user asked for or handed in can't be taken as it is."""

    exit_code = 2


class DamagedDataError(RoutingError):
    """A file of ours isn't what its manifest says: truncated, altered, missing or written by a newer version."""

    exit_code = 3


class StorageError(RoutingError):
    """Reading or writing failed: disk full, no permission, another writer holds the run."""

    exit_code = 4
