"""Units laid out step by step, so that any batch of drawn units is a sum of a few rows.

A **unit**'s steps are those of its trajectories, one after the other in the order of the corpus. A segment is **shared** where
several units pass through it (a policy prompt), else it is its unit's **own**. A batch of a resampled stream is

    the tail of the unit it begins in + whole units + the head of the unit it ends in + each shared segment in them once

or a window of one unit. Own segments that a unit's trajectories repeat count once a batch and draw of the unit.

P steps of U units, S segments of which X are shared, W words of bits, F columns of loads (blocks x layers); a 1 is one more.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from routing.fit.counts import Booleans, Counts, Floats, Integers

Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Unit u holds the steps from starts_U1[u] to starts_U1[u + 1].

    `is_first_P` and `is_last_P` mark the first and the last of equal segments within the unit; `shared_P` numbers shared
    segments from 0 and is -1 at an own segment. `tail_own_P` are own tokens from a step to its unit's end, each segment once.
    Bits are sets of shared segments, 64 to a word: of whole units, of tails, and of heads up to and with a step.
    """

    starts_U1: Integers
    unit_P: Integers
    segments_P: Integers
    tokens_P: Integers
    shared_P: Integers
    is_first_P: Booleans
    is_last_P: Booleans
    own_tokens_U: Integers
    tail_own_P: Integers
    shared_tokens_X: Integers
    shared_segments_X: Integers
    unit_bits_UW: Bits
    tail_bits_PW: Bits
    head_bits_PW: Bits

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.own_tokens_U)

    @property
    def num_steps(self) -> int:
        """P."""
        return len(self.segments_P)

    def unpacked(self, bits_W: Bits) -> Booleans:
        """A column for every shared segment."""
        columns = np.unpackbits(bits_W.astype("<u8").view(np.uint8), axis=1, bitorder="little")
        return columns[:, : len(self.shared_tokens_X)].view(np.bool_)

    def shared_tokens(self, bits_W: Bits) -> Integers:
        """Tokens of each row's shared segments."""
        return np.asarray(self.unpacked(bits_W) @ self.shared_tokens_X.astype(np.float64)).astype(np.int64)


def lay_out(counts: Counts) -> Layout:
    """The units in the order in which the corpus first meets them."""
    unit_of_step = counts.units_T[counts.trajectory_ids]
    _, first_step, unit_P = np.unique(unit_of_step, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first_step))[unit_P]
    rows = np.argsort(place, kind="stable")
    unit_P, segments_P, tokens_P = place[rows], counts.segment_ids[rows], counts.num_tokens[rows]
    starts_U1 = np.searchsorted(unit_P, np.arange(len(first_step) + 1))
    is_first_P, is_last_P = _first_and_last(unit_P, segments_P)
    segments, num_units = np.unique(segments_P[is_first_P], return_counts=True)
    shared_segments_X = segments[num_units > 1]
    place = np.searchsorted(shared_segments_X, segments_P)
    known = np.append(shared_segments_X, -1)[place] == segments_P
    shared_P = np.where(known, place, -1)
    head_bits_PW, tail_bits_PW = _bits(starts_U1, shared_P, num_words=-(-len(shared_segments_X) // 64))
    tokens = dict(zip(segments_P.tolist(), tokens_P.tolist(), strict=True))
    return Layout(
        starts_U1=starts_U1,
        unit_P=unit_P,
        segments_P=segments_P,
        tokens_P=tokens_P,
        shared_P=shared_P,
        is_first_P=is_first_P,
        is_last_P=is_last_P,
        own_tokens_U=_sums(starts_U1, tokens_P * is_first_P * (shared_P < 0)),
        tail_own_P=_tails(starts_U1, unit_P, (tokens_P * is_last_P * (shared_P < 0)).astype(np.float64)).astype(np.int64),
        shared_tokens_X=np.array([tokens[segment] for segment in shared_segments_X.tolist()], dtype=np.int64),
        shared_segments_X=shared_segments_X,
        unit_bits_UW=tail_bits_PW[starts_U1[:-1]],
        tail_bits_PW=tail_bits_PW,
        head_bits_PW=head_bits_PW,
    )


def window_ends(layout: Layout, batch_tokens: int) -> Integers:
    """For every step, one past the step that closes a batch which begins there; -1 where its unit ends first."""
    segments, tokens, stops = layout.segments_P.tolist(), layout.tokens_P.tolist(), layout.starts_U1[layout.unit_P + 1].tolist()
    ends = np.full(layout.num_steps, -1, dtype=np.int64)
    copies: dict[int, int] = {}
    end = size = 0
    for start, stop in enumerate(stops):
        if start == 0 or stops[start - 1] != stop:
            copies, end, size = {}, start, 0
        while size < batch_tokens and end < stop:
            seen = copies.get(segments[end], 0)
            size += 0 if seen else tokens[end]
            copies[segments[end]] = seen + 1
            end += 1
        if size >= batch_tokens:
            ends[start] = end
        copies[segments[start]] -= 1
        size -= 0 if copies[segments[start]] else tokens[start]
    return ends


def window_parts(layout: Layout, ends_P: Integers, *, num_segments: int) -> sparse.csr_array:
    """A row for every window, in the order of the steps that they begin at: 1 at each segment in it."""
    begins = np.flatnonzero(ends_P >= 0)
    row, step = ranges(begins, ends_P[begins])
    key = np.unique(row * num_segments + layout.segments_P[step])
    places = (key // num_segments, key % num_segments)
    return sparse.coo_array((np.ones(len(key)), places), shape=(len(begins), num_segments)).tocsr()


def ranges(begins: Integers, stops: Integers) -> tuple[Integers, Integers]:
    """(which range, member) of every member of the ranges begins[i] to stops[i], one after the other."""
    lengths = stops - begins
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row, np.arange(len(row)) + np.repeat(begins - before(lengths)[:-1], lengths)


def before(values: Integers) -> Integers:
    """Running sums that begin with 0."""
    return np.append(0, np.cumsum(values))


def own_rows(layout: Layout, loads_SF: Floats) -> Floats:
    """Loads of own segments alone: P tails, then P heads, each up to and with its step. Columns are as in `loads_SF`.

    A whole unit is the tail of its first step.
    """
    own_PF = loads_SF[layout.segments_P] * (layout.shared_P < 0)[:, None]
    tails_PF = _tails(layout.starts_U1, layout.unit_P, own_PF * layout.is_last_P[:, None])
    first_PF = own_PF * layout.is_first_P[:, None]
    upto_PF = np.cumsum(first_PF, axis=0)
    begins_UF = upto_PF[layout.starts_U1[:-1]] - first_PF[layout.starts_U1[:-1]]
    return np.concatenate([tails_PF, upto_PF - begins_UF[layout.unit_P]])


def _tails(starts_U1: Integers, unit_P: Integers, values_PF: Floats) -> Floats:
    """From each step to the end of its unit."""
    upto_PF = np.cumsum(values_PF, axis=0)
    ends_UF = upto_PF[starts_U1[1:] - 1]
    return np.asarray(ends_UF[unit_P] - upto_PF + values_PF)


def _sums(starts_U1: Integers, values_P: Integers) -> Integers:
    return np.asarray(np.add.reduceat(values_P, starts_U1[:-1]))


def _bits(starts_U1: Integers, shared_P: Integers, *, num_words: int) -> tuple[Bits, Bits]:
    """(of heads, of tails), each with its own step."""
    bits_PW = np.zeros((len(shared_P), max(1, num_words)), dtype=np.uint64)
    steps = np.flatnonzero(shared_P >= 0)
    bits_PW[steps, shared_P[steps] >> 6] = np.uint64(1) << (shared_P[steps] & 63).astype(np.uint64)
    heads, tails = bits_PW.copy(), bits_PW.copy()
    for start, stop in zip(starts_U1[:-1].tolist(), starts_U1[1:].tolist(), strict=True):
        heads[start:stop] = np.bitwise_or.accumulate(bits_PW[start:stop], axis=0)
        tails[start:stop] = np.bitwise_or.accumulate(bits_PW[start:stop][::-1], axis=0)[::-1]
    return heads, tails


def _first_and_last(unit_P: Integers, segments_P: Integers) -> tuple[Booleans, Booleans]:
    order = np.lexsort((segments_P, unit_P))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (unit_P[order][1:] != unit_P[order][:-1]) | (segments_P[order][1:] != segments_P[order][:-1])
    is_first, is_last = np.zeros_like(begins), np.zeros_like(begins)
    is_first[order] = begins
    is_last[order] = np.append(begins[1:], True)
    return is_first, is_last
