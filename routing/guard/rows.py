"""Routed rows as trainers hold them: lists, NumPy arrays, torch tensors on any device, told apart without either library.

A tensor's rows stay on its device until the step ends: each layer's are copied into one buffer there, which is read back once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from routing.core.errors import InputError

_FIRST_SLOTS = 64
_INEXACT = ("float16", "bfloat16", "float8")  # counts above 256 or 2,048 are rounded there


class HeldRows:
    """Rows of one step, in the order in which they came, each with its layer."""

    def __init__(self, by_rank: Callable[[Any], Any] | None = None) -> None:
        """`by_rank` sums a tensor or array [additions, experts] to [additions, ranks] where it is; without it all are read."""
        self._by_rank = by_rank
        self._buffers: dict[tuple[Any, ...], _Buffer] = {}
        self._seen: list[tuple[int, list[int] | _Place]] = []

    def add(self, layer: int, rows: Any) -> None:
        """Keeps a copy of `rows`; a tensor's on its own device, without waiting for it. Rows that are refused leave nothing."""
        if hasattr(rows, "new_empty"):  # a torch tensor
            key = (rows.device, rows.dtype, len(rows))
            buffer = self._buffers.get(key)
            if buffer is None:
                buffer = self._buffers[key] = _Buffer(rows)
            self._seen.append((layer, _Place(buffer, buffer.add(rows))))
        else:
            self._seen.append((layer, whole_rows(self._of_array(rows) if hasattr(rows, "tolist") else rows, layer)))

    def _of_array(self, rows: Any) -> list[Any]:
        """A NumPy array by rank, or as it is where ranks are no view of it; float32 sums are exact below 2**24 alone."""
        exact = rows.astype("float64") if rows.dtype.kind == "f" else rows
        read: list[Any] = (exact if self._by_rank is None else self._by_rank(exact[None])[0]).tolist()
        return read

    def take(self) -> list[tuple[int, list[int]]]:
        """(layer, rows) of every addition since the last call: one copy to the host for each device.

        InputError for rows that are no counts; the additions are gone then too, so that the next call begins anew.
        """
        try:
            read = {id(buffer): buffer.read(self._by_rank) for buffer in self._buffers.values()}
            return [
                (layer, whole_rows(read[id(rows.buffer)][rows.index], layer) if isinstance(rows, _Place) else rows)
                for layer, rows in self._seen
            ]
        finally:
            self._seen.clear()
            for buffer in self._buffers.values():
                buffer.clear()


class _Buffer:
    """Rows of one device, kind and length; it grows to the most additions of any step and stays."""

    def __init__(self, like: Any) -> None:
        if str(like.dtype).removeprefix("torch.").startswith(_INEXACT):
            raise InputError(f"guard: rows of {like.dtype} are not exact; hand in whole numbers, float32 or float64")
        self._rows = like.new_empty((_FIRST_SLOTS, len(like)))
        self._used = 0

    def add(self, rows: Any) -> int:
        if self._used == len(self._rows):
            grown = self._rows.new_empty((2 * self._used, self._rows.shape[1]))
            grown[: self._used].copy_(self._rows)
            self._rows = grown
        self._rows[self._used].copy_(rows.detach())
        self._used += 1
        return self._used - 1

    def read(self, by_rank: Callable[[Any], Any] | None) -> list[list[int]]:
        rows = self._rows[: self._used]
        if rows.is_floating_point():
            rows = rows.double()  # sums of float32 are exact below 2**24 alone
        read: list[list[int]] = (by_rank(rows) if by_rank is not None and self._used else rows).tolist()
        return read

    def clear(self) -> None:
        self._used = 0


class _Place(NamedTuple):
    """Where a tensor's rows stand until the step ends."""

    buffer: _Buffer
    index: int


def whole_rows(rows: Sequence[Any], layer: int) -> list[int]:
    """`rows` as whole numbers, none negative; InputError naming the layer and the first that is not."""
    try:
        counts = list(rows) if set(map(type, rows)) == {int} else _as_integers(rows)
        if counts and min(counts) >= 0:
            return counts
    except (TypeError, ValueError, OverflowError):
        pass
    bad = next((one for one in rows if not _is_count(one)), rows)
    raise InputError(f"guard: layer {layer}: {str(bad)[:40]!r} is no number of rows; hand in counts by expert or by rank")


def _as_integers(rows: Sequence[Any]) -> list[int]:
    is_whole = all(map(float.is_integer, rows)) if set(map(type, rows)) == {float} else all(map(_is_count, rows))
    return list(map(int, rows)) if is_whole else []


def _is_count(value: Any) -> bool:
    try:
        return bool(int(value) == value >= 0)
    except (TypeError, ValueError, OverflowError):
        return False
