"""Routed rows as trainers hold them: lists, NumPy arrays, torch tensors on any device, told apart without either library.

A tensor's rows stay on its device until the step ends: each layer's are copied into one buffer there, which is read back once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from routing.core.errors import InputError

_FIRST_SLOTS = 64
_INEXACT = ("float16", "bfloat16", "float8")  # counts above 256 or 2,048 are rounded there
_NO_COUNTS = -1
_MAX_ROWS = 10**15  # of a dispatch: what a line of the log may hold, and no sum over experts passes int64


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
            key = (rows.device, rows.dtype, rows.layout, len(rows))
            buffer = self._buffers.get(key)
            if buffer is None:
                buffer = self._buffers[key] = _Buffer(rows)
            self._seen.append((layer, _Place(buffer, buffer.add(rows))))
        else:
            self._seen.append((layer, self._of_array(rows, layer) if hasattr(rows, "dtype") else whole_rows(rows, layer)))

    def _of_array(self, rows: Any, layer: int) -> list[int]:
        """A NumPy array by rank, or as it is where ranks are no view of it."""
        _require_exact(rows)
        if self._by_rank is None or rows.dtype.kind not in "biuf" or hasattr(rows, "mask"):
            return whole_rows(rows.tolist(), layer)
        wide_1N = rows.astype("float64" if rows.dtype.kind == "f" else "int64").reshape(1, -1)
        return whole_rows((self._by_rank(wide_1N)[0] if _are_counts(wide_1N).all() else rows).tolist(), layer)

    def take(self) -> list[tuple[int, list[int]]]:
        """(layer, rows) of every addition since the last call: one copy to the host for each device.

        InputError for rows that are no counts; the additions are gone then too, so that the next call begins anew.
        """
        try:
            read = {id(buffer): buffer.read(self._by_rank) for buffer in self._buffers.values()}
            return [
                (layer, whole_rows(rows.of(read[id(rows.buffer)]), layer) if isinstance(rows, _Place) else rows)
                for layer, rows in self._seen
            ]
        finally:
            self._seen.clear()
            for buffer in self._buffers.values():
                buffer.clear()


class _Buffer:
    """Rows of one device, kind and length; it grows to the most additions of any step and stays."""

    def __init__(self, like: Any) -> None:
        _require_exact(like)
        if like.is_sparse or like.is_meta or like.is_complex():
            raise InputError(f"guard: rows of {like.dtype}, {like.layout} on {like.device}: hand in a dense tensor of counts")
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
        """By rank, one copy to the host. Rows with one that is no count, which a sum would hide, are -1 throughout."""
        rows_NE = self._rows[: self._used]
        if by_rank is not None and self._used:
            wide_NE = rows_NE.double() if rows_NE.is_floating_point() else rows_NE.long()
            rows_NE = by_rank(wide_NE).masked_fill_(~_are_counts(wide_NE).all(1, True), _NO_COUNTS)
        read: list[list[int]] = rows_NE.tolist()
        return read

    def as_added(self, row: int) -> list[Any]:
        read: list[Any] = self._rows[row].tolist()
        return read

    def clear(self) -> None:
        self._used = 0


class _Place(NamedTuple):
    """Where a tensor's rows stand until the step ends."""

    buffer: _Buffer
    row: int

    def of(self, read: list[list[int]]) -> list[Any]:
        """The rows as read, or as they were added where they are refused, so that the count at fault can be named."""
        rows = read[self.row]
        return self.buffer.as_added(self.row) if rows[0] == _NO_COUNTS else rows


def whole_rows(rows: Sequence[Any], layer: int) -> list[int]:
    """`rows` as whole numbers, none negative, 10**15 in all at most; InputError naming the layer and the first that is not."""
    try:
        counts = list(rows) if set(map(type, rows)) == {int} else _as_integers(rows)
        if counts and min(counts) >= 0 and sum(counts) <= _MAX_ROWS:
            return counts
    except (TypeError, ValueError, OverflowError):
        pass
    bad = [one for one in rows if not _is_count(one)]
    what = f"{str(bad[0])[:40]!r} is no number of rows" if bad else f"more than {_MAX_ROWS:,} rows"
    raise InputError(f"guard: layer {layer}: {what}; hand in counts by expert or by rank")


def _are_counts(wide_NE: Any) -> Any:
    """Of a tensor or array in float64 or int64, one by one; NaN is none."""
    return (wide_NE >= 0) & (wide_NE <= _MAX_ROWS) & (wide_NE % 1 == 0)


def _require_exact(rows: Any) -> None:
    if str(rows.dtype).removeprefix("torch.").startswith(_INEXACT):
        raise InputError(f"guard: rows of {rows.dtype} are not exact; hand in whole numbers, float32 or float64")


def _as_integers(rows: Sequence[Any]) -> list[int]:
    is_whole = all(map(float.is_integer, rows)) if set(map(type, rows)) == {float} else all(map(_is_count, rows))
    return list(map(int, rows)) if is_whole else []


def _is_count(value: Any) -> bool:
    try:
        return bool(int(value) == value and 0 <= value <= _MAX_ROWS)
    except (TypeError, ValueError, OverflowError):
        return False
