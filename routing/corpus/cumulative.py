"""Request logs repeat the conversation in every request: which requests belong to one conversation."""

import hashlib
import json
from collections.abc import Sequence


class Conversations:
    """The first request of every conversation of a file; 16 bytes are kept of each request."""

    def __init__(self) -> None:
        self._first_rows: dict[bytes, int] = {}

    def first_row(self, request: Sequence[object] | None, row: int) -> int:
        """The row that began the conversation which `request` goes on with, or `row` itself.

        A request continues an earlier one whose messages, all of them, it begins with; of several the longest.
        """
        if not request:
            return row
        digest = hashlib.blake2b(digest_size=16)
        first = row
        for message in request:
            try:
                digest.update(json.dumps(message, sort_keys=True, default=str).encode() + b"\n")
            except RecursionError:  # nested too deeply: refused later, with a reason
                return row
            first = self._first_rows.get(digest.digest(), first)
        self._first_rows.setdefault(digest.digest(), first)
        return first
