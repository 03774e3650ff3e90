"""Streams of drawn units cut into batches by the one rule: the step that reaches the size closes a batch, the rest is dropped.

All streams go on side by side, a batch at a time. A batch that begins in a unit takes its tail; then as many whole units as
surely fit, told by the running sum of own tokens; then unit after unit, until one is cut. Which shared segments a batch has met
is a row of bits, so that a unit's join by one `or`.

K streams of N draws each, D = K x N draws in one list, U units of P steps, W words of bits; a 1 is one more.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from routing.fit.counts import Booleans, Integers
from routing.fit.layout import Bits, Layout, before, ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The full batches of every stream, by stream and then as they come.

    `window` is the step that a batch inside one unit begins at, else -1. The rows of `own` and `shared` are the batches without
    a window: how often each row of `layout.own_rows`, and whether each shared segment, is part of them.
    """

    stream: Integers
    window: Integers
    own: sparse.csr_array
    shared: Booleans


@dataclass(frozen=True, kw_only=True, slots=True)
class _Closed:
    """Batches that one step of all streams closed: a tail, the draws between `begin` and `end` whole, a head; or a window."""

    stream: Integers
    window: Integers
    tail: Integers
    begin: Integers
    end: Integers
    head: Integers
    bits_W: Bits


def cut_streams(layout: Layout, ends_P: Integers, draws_KN: Integers, batch_tokens: int) -> Cut:
    """K streams of N drawn units; `ends_P` are the window ends at this size."""
    cutter = _Cutter(layout, ends_P, draws_KN, batch_tokens)
    closed = []
    while len(cutter.alive):
        closed += [cutter.inside(), cutter.crossing()]
        cutter.step_over_ends()
    return _joined(layout, draws_KN.ravel(), closed)


class _Cutter:
    """Where every stream is: `draw_K` in the flat list of draws, `step_K` in the layout."""

    def __init__(self, layout: Layout, ends_P: Integers, draws_KN: Integers, batch_tokens: int) -> None:
        self.layout, self.ends_P, self.batch_tokens = layout, ends_P, batch_tokens
        num_streams, num_draws = draws_KN.shape
        self.units_D = draws_KN.ravel()
        self.stop_K = (np.arange(num_streams) + 1) * num_draws
        self.own_before_D1 = before(layout.own_tokens_U[self.units_D])
        self.most_shared = int(layout.shared_tokens_X.sum())
        self.draw_K = self.stop_K - num_draws
        self.step_K = layout.starts_U1[self.units_D[self.draw_K]]
        self.alive = self.pending = np.arange(num_streams)

    def inside(self) -> _Closed:
        """The batches that end in the unit that they begin in; the other streams are left pending."""
        window_ends = self.ends_P[self.step_K[self.alive]]
        streams, self.pending = self.alive[window_ends >= 0], self.alive[window_ends < 0]
        window = self.step_K[streams]
        self.step_K[streams] = window_ends[window_ends >= 0]
        none = np.zeros(len(streams), dtype=np.int64)
        bits = np.zeros((len(streams), self.layout.unit_bits_UW.shape[1]), dtype=np.uint64)
        self.alive = streams
        return _Closed(stream=streams, window=window, tail=none, begin=none, end=none, head=none, bits_W=bits)

    def crossing(self) -> _Closed:
        """The batches of pending streams: a tail, whole units, a head. A stream without draws left ends."""
        layout, streams = self.layout, self.pending
        tail = self.step_K[streams]
        begin = self.draw_K[streams] + 1
        own, bits = layout.tail_own_P[tail], layout.tail_bits_PW[tail]
        end, own, bits = self._whole_units(begin, self.stop_K[streams], own, bits)
        head = np.full(len(streams), -1)
        rows = np.arange(len(streams))
        while len(rows := rows[end[rows] < self.stop_K[streams[rows]]]):
            unit = self.units_D[end[rows]]
            joined = bits[rows] | layout.unit_bits_UW[unit]
            fits = own[rows] + layout.own_tokens_U[unit] + layout.shared_tokens(joined) < self.batch_tokens
            cut = rows[~fits]
            head[cut] = self._closing_steps(
                unit[~fits], self.batch_tokens - own[cut] - layout.shared_tokens(bits[cut]), bits[cut]
            )
            bits[cut] |= layout.head_bits_PW[head[cut]]
            rows = rows[fits]
            bits[rows] = joined[fits]
            own[rows] += layout.own_tokens_U[unit[fits]]
            end[rows] += 1
        is_closed = head >= 0
        streams, tail, begin, end, head = (column[is_closed] for column in (streams, tail, begin, end, head))
        self.draw_K[streams], self.step_K[streams] = end, head + 1
        self.alive = np.sort(np.concatenate([self.alive, streams]))
        window = np.full(len(streams), -1)
        return _Closed(stream=streams, window=window, tail=tail, begin=begin, end=end, head=head, bits_W=bits[is_closed])

    def _whole_units(self, begin: Integers, stop: Integers, own: Integers, bits: Bits) -> tuple[Integers, Integers, Bits]:
        """(end, own tokens, bits) after the units that fit even if every shared segment came with them."""
        short = self.own_before_D1[np.minimum(begin, stop)] + self.batch_tokens - own - self.most_shared
        end = np.searchsorted(self.own_before_D1, short, side="left") - 1
        end = np.clip(end, np.minimum(begin, stop), stop)
        taken = end > begin
        first, last = begin[taken], end[taken]
        _, draw = ranges(first, last)
        if len(draw):
            met = self.layout.unit_bits_UW[self.units_D[draw]]
            bits[taken] |= np.bitwise_or.reduceat(met, before(last - first)[:-1], axis=0)
        return end, own + self.own_before_D1[end] - self.own_before_D1[np.minimum(begin, stop)], bits

    def _closing_steps(self, unit: Integers, need: Integers, bits: Bits) -> Integers:
        """The step of each unit that reaches the tokens still needed."""
        layout = self.layout
        row, step = ranges(layout.starts_U1[unit], layout.starts_U1[unit + 1])
        shared = layout.shared_P[step]
        counts = layout.is_first_P[step]
        asked = np.flatnonzero(counts & (shared >= 0))
        word, bit = shared[asked] >> 6, (shared[asked] & 63).astype(np.uint64)
        counts[asked] = (bits[row[asked], word] >> bit) & np.uint64(1) == 0
        upto = np.cumsum(layout.tokens_P[step] * counts)
        previous = np.append(0, upto)[np.searchsorted(row, np.arange(len(unit)))]
        return step[np.searchsorted(upto, previous + need, side="left")]

    def step_over_ends(self) -> None:
        """A stream that closed a batch at its unit's end goes on with the next draw, or ends."""
        streams = self.alive
        at_end: Booleans = self.step_K[streams] == self.layout.starts_U1[self.units_D[self.draw_K[streams]] + 1]
        self.draw_K[streams[at_end]] += 1
        goes_on = self.draw_K[streams] < self.stop_K[streams]
        self.alive = streams[goes_on]
        begins = streams[at_end & goes_on]
        self.step_K[begins] = self.layout.starts_U1[self.units_D[self.draw_K[begins]]]


def _joined(layout: Layout, units_D: Integers, closed: list[_Closed]) -> Cut:
    """All batches by stream, their parts as two matrices, few of many rows and many of few."""
    columns = {name: np.concatenate([getattr(one, name) for one in closed]) for name in _Closed.__slots__}
    order = np.argsort(columns["stream"], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    crossing = columns["window"] < 0
    tail, begin, end, head = (columns[name][crossing] for name in ("tail", "begin", "end", "head"))
    indptr = before(2 + end - begin)
    indices = np.empty(indptr[-1], dtype=np.int32)
    indices[indptr[:-1]] = tail
    indices[indptr[1:] - 1] = layout.num_steps + head
    row, draw = ranges(begin, end)
    indices[np.arange(len(draw)) + 2 * row + 1] = layout.starts_U1[units_D[draw]]
    shape = (len(tail), 2 * layout.num_steps)
    own = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=shape)
    met = layout.unpacked(columns["bits_W"][crossing])
    return Cut(stream=columns["stream"], window=columns["window"], own=own, shared=met)
