"""Levels of imbalance over resampled batches: units drawn whole, with replacement, from pools that are drawn the same way.

A pool is as many units as there are, drawn with replacement; the first pool is the units themselves. Each pool's batches are
cut from streams of units drawn with replacement from it, until it has NUM_BATCHES. A batch's loads are sums of whole numbers,
so each imbalance is the same division that the queries make.

N EP sizes, C columns (the worst over layers, then each layer), G pools, U units, P steps, K streams, M batches, R rows of own
loads, X shared segments, S segments, B blocks of experts, L layers, F = B x L flat. Samples are [G, N, C, M].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from routing.fit import gumbel
from routing.fit.counts import Booleans, Counts, Floats, Integers, rank_loads
from routing.fit.cut import Cut, cut_streams
from routing.fit.layout import Layout, lay_out, own_rows, window_ends, window_parts

NUM_BATCHES = 2_000
NUM_POOLS = 200
JUDGED_POOLS = 50  # of a fit that is only held against what it left out: its 97.5% point is noisier, no bound of an entry
_BATCHES_PER_STREAM = 50
_LEAST_DRAWS = 16  # a stream's first batch begins where a unit begins, which few batches do
_FLOATS_AT_ONCE = 8_000_000
_FLOATS_IN_CACHE = 100_000  # loads of a few hundred batches: what is summed and compared several times stays close
_DRAWS_AT_ONCE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """By EP size and column (the worst over layers, then each layer): the units' own level and its 95% interval."""

    estimate_NC: Floats
    low_NC: Floats
    high_NC: Floats


def resampled_levels(
    counts: Counts, *, batch_tokens: int, eps: Sequence[int], by_layer: bool, seed: int, num_pools: int | None = None
) -> Levels:
    """Each EP size divides the number of blocks; some unit has tokens of its own. The same seed gives the same bytes.

    `num_pools` is NUM_POOLS unless told.
    """
    layout = lay_out(counts)
    sampler = _Sampler(counts, layout, batch_tokens=batch_tokens, eps=eps, by_layer=by_layer)
    rng = np.random.default_rng([seed, batch_tokens])
    pools = np.concatenate([np.arange(layout.num_units)[None], _pools(layout, num_pools or NUM_POOLS, rng)])
    found = np.concatenate([gumbel.levels(samples) for samples in sampler.samples(pools, rng)])
    low, high = gumbel.interval(found[1:])
    return Levels(estimate_NC=found[0], low_NC=low, high_NC=high)


class _Sampler:
    """Batches of one layout at one size, and their imbalances."""

    def __init__(self, counts: Counts, layout: Layout, *, batch_tokens: int, eps: Sequence[int], by_layer: bool) -> None:
        self.layout, self.batch_tokens, self.eps, self.by_layer = layout, batch_tokens, tuple(eps), by_layer
        self.blocks_layers, self.is_strided = counts.loads_SBL.shape[1:], counts.is_strided
        loads_SF = counts.loads_SBL.reshape(len(counts.loads_SBL), -1)
        self.ends_P = window_ends(layout, batch_tokens)
        self.own_RF, self.shared_XF = own_rows(layout, loads_SF), loads_SF[layout.shared_segments_X]
        windows = window_parts(layout, self.ends_P, num_segments=len(loads_SF))
        none = np.zeros((windows.shape[0], 0), dtype=np.bool_)
        self.windows_NCP = np.zeros((len(eps), self.num_columns, layout.num_steps))
        self.windows_NCP[:, :, self.ends_P >= 0] = self._imbalances(windows, loads_SF, none, loads_SF[:0])
        consumed = batch_tokens + layout.tokens_P.mean() / 2
        self.num_draws = max(_LEAST_DRAWS, int(np.ceil(_BATCHES_PER_STREAM * consumed / layout.own_tokens_U.mean())))
        self.num_streams = int(np.ceil(1.1 * NUM_BATCHES * consumed / layout.own_tokens_U.mean() / self.num_draws))

    @property
    def num_columns(self) -> int:
        """The worst over layers, then each layer if asked for."""
        return 1 + (self.blocks_layers[1] if self.by_layer else 0)

    def samples(self, pools_GU: Integers, rng: np.random.Generator) -> Iterator[Floats]:
        """Imbalances [pool, EP size, column, batch] of some pools at a time, NUM_BATCHES of each."""
        sizes = (
            self.num_draws * self.num_streams,
            NUM_BATCHES * len(self.layout.shared_tokens_X) // 8,
            NUM_BATCHES * len(self.eps) * self.num_columns,
        )
        limits = (_DRAWS_AT_ONCE, _FLOATS_AT_ONCE, _FLOATS_AT_ONCE)
        step = max(1, min(limit // max(1, size) for limit, size in zip(limits, sizes, strict=True)))
        for start in range(0, len(pools_GU), step):
            yield self._of_pools(pools_GU[start : start + step], rng)

    def _of_pools(self, pools_GU: Integers, rng: np.random.Generator) -> Floats:
        found: list[list[Floats]] = [[] for _ in pools_GU]
        missing = np.arange(len(pools_GU))
        num_streams, num_draws = self.num_streams, self.num_draws
        while len(missing):
            pool_K = np.repeat(missing, num_streams)
            places = rng.integers(0, pools_GU.shape[1], (len(pool_K), num_draws))
            cut = cut_streams(self.layout, self.ends_P, pools_GU[pool_K[:, None], places], self.batch_tokens)
            imbalances = self.imbalances(cut)
            bounds = np.searchsorted(pool_K[cut.stream], np.append(missing, len(pools_GU)))
            for place, pool in enumerate(missing.tolist()):
                found[pool].append(imbalances[:, :, bounds[place] : bounds[place + 1]])
            missing = np.array([pool for pool in missing.tolist() if _num(found[pool]) < NUM_BATCHES], dtype=np.int64)
            num_streams = max(1, num_streams // 8)
            if any(not _num(found[pool]) for pool in missing.tolist()):
                num_draws *= 2  # a pool without the large units, whose streams are too short for one batch
        return np.stack([np.concatenate(parts, axis=-1)[:, :, :NUM_BATCHES] for parts in found])

    def imbalances(self, cut: Cut) -> Floats:
        """[EP size, column, batch] of every batch of `cut`."""
        crossing = cut.window < 0
        found = self._imbalances(cut.own, self.own_RF, cut.shared, self.shared_XF)
        if crossing.all():
            return found
        every = self.windows_NCP[:, :, np.maximum(cut.window, 0)]
        every[:, :, crossing] = found
        return every

    def _imbalances(self, own: sparse.csr_array, own_RF: Floats, shared: Booleans, shared_XF: Floats) -> Floats:
        """Of batches whose loads are the sum of both matrix products."""
        found = np.empty((len(self.eps), self.num_columns, len(shared)))
        step = max(1, _FLOATS_IN_CACHE // max(1, own_RF.shape[1]))
        for start in range(0, len(shared), step):
            stop = min(len(shared), start + step)
            loads_MF = np.asarray(_rows(own, start, stop) @ own_RF)
            if len(shared_XF):
                loads_MF += shared[start:stop].astype(np.float64) @ shared_XF
            loads_BLM = np.ascontiguousarray(loads_MF.T).reshape(*self.blocks_layers, -1)
            self._of_loads(loads_BLM, found[:, :, start:stop])
        return found

    def _of_loads(self, loads_BLM: Floats, found: Floats) -> None:
        """Into `found`: busiest rank x EP size / rows, per layer, and the worst of the layers before them.

        Batches are the last axis, where neighbours in memory are.
        """
        rows_LM = loads_BLM.sum(axis=0)
        for place, ep in enumerate(self.eps):
            ratios_LM = rank_loads(loads_BLM, ep, is_strided=self.is_strided).max(axis=0) * ep / rows_LM
            found[place, 0] = ratios_LM.max(axis=0)
            if self.by_layer:
                found[place, 1:] = ratios_LM


def _num(found: Sequence[Floats]) -> int:
    return sum(part.shape[-1] for part in found)


def _rows(parts: sparse.csr_array, start: int, stop: int) -> sparse.csr_array:
    """Neighbouring rows, as views."""
    begin, end = parts.indptr[start], parts.indptr[stop]
    indptr = parts.indptr[start : stop + 1] - begin
    return sparse.csr_array((parts.data[begin:end], parts.indices[begin:end], indptr), shape=(stop - start, parts.shape[1]))


def _pools(layout: Layout, num_pools: int, rng: np.random.Generator) -> Integers:
    """Draws of as many units as there are; a pool without a token of its own fills no batch and is drawn again."""
    pools_GU = rng.integers(0, layout.num_units, (num_pools, layout.num_units))
    while len(empty := np.flatnonzero(layout.own_tokens_U[pools_GU].sum(axis=1) == 0)):
        pools_GU[empty] = rng.integers(0, layout.num_units, (len(empty), layout.num_units))
    return pools_GU
