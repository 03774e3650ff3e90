"""What one check of the second way came to."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`num_checked` things of the kind `of` were held to the check; `first` is the first that failed, empty where none did.

    `is_damage` where a failure means that a file is not the one that was written, rather than that a rule of counting is broken.
    """

    check: str
    of: str
    num_checked: int
    num_failed: int
    first: str
    is_damage: bool = False


def finding(check: str, of: str, num_checked: int, faults: Iterable[str], *, is_damage: bool = False) -> Finding:
    """The finding of `faults`, one text for each thing that failed."""
    told = list(faults)
    first = told[0] if told else ""
    return Finding(check=check, of=of, num_checked=num_checked, num_failed=len(told), first=first, is_damage=is_damage)
