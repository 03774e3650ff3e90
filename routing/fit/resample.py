"""Levels of imbalance over resampled batches: units drawn whole, with replacement, from pools that are drawn the same way.

A pool is as many units as there are, drawn with replacement; the first pool is the units themselves. Each pool's batches are
cut from streams of units drawn with replacement from it, until it has NUM_BATCHES. A batch's loads are sums of whole numbers,
so each imbalance is the same division that the queries make.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from routing.fit import gumbel
from routing.fit.counts import Counts, Floats, Integers
from routing.fit.cut import Cut, cut_streams
from routing.fit.layout import Layout, lay_out, own_rows, window_ends, window_parts

NUM_BATCHES = 2_000
NUM_POOLS = 200
_BATCHES_PER_STREAM = 50
_LEAST_DRAWS = 16  # a stream's first batch begins where a unit begins, which few batches do
_FLOATS_AT_ONCE = 8_000_000
_DRAWS_AT_ONCE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """By EP size and column (the worst over layers, then each layer): the units' own level and its 95% interval."""

    estimate_NC: Floats
    low_NC: Floats
    high_NC: Floats


def resampled_levels(counts: Counts, *, batch_tokens: int, eps: Sequence[int], by_layer: bool, seed: int) -> Levels:
    """Each EP size divides the number of blocks; some unit has tokens of its own. The same seed gives the same bytes."""
    layout = lay_out(counts)
    sampler = _Sampler(counts, layout, batch_tokens=batch_tokens, eps=eps, by_layer=by_layer)
    rng = np.random.default_rng([seed, batch_tokens])
    pools = np.concatenate([np.arange(layout.num_units)[None], _pools(layout, rng)])
    found = np.stack([gumbel.levels(sample) for sample in sampler.samples(pools, rng)])
    low, high = gumbel.interval(found[1:])
    return Levels(estimate_NC=found[0], low_NC=low, high_NC=high)


class _Sampler:
    """Batches of one layout at one size, and their imbalances."""

    def __init__(self, counts: Counts, layout: Layout, *, batch_tokens: int, eps: Sequence[int], by_layer: bool) -> None:
        self.layout, self.batch_tokens, self.eps, self.by_layer = layout, batch_tokens, tuple(eps), by_layer
        self.blocks_layers = counts.loads_SBL.shape[1:]
        loads_SX = counts.loads_SBL.reshape(len(counts.loads_SBL), -1)
        self.ends_P = window_ends(layout, batch_tokens)
        self.own_X, self.shared_X = own_rows(layout, loads_SX), loads_SX[layout.shared_segments_X]
        windows = window_parts(layout, self.ends_P, num_segments=len(loads_SX))
        self.windows_PNC = np.zeros((layout.num_steps, len(eps), self.num_columns))
        self.windows_PNC[self.ends_P >= 0] = self._imbalances((windows, loads_SX))
        consumed = batch_tokens + layout.tokens_P.mean() / 2
        self.num_draws = max(_LEAST_DRAWS, int(np.ceil(_BATCHES_PER_STREAM * consumed / layout.own_tokens_U.mean())))
        self.num_streams = int(np.ceil(1.1 * NUM_BATCHES * consumed / layout.own_tokens_U.mean() / self.num_draws))

    @property
    def num_columns(self) -> int:
        """The worst over layers, then each layer if asked for."""
        return 1 + (self.blocks_layers[1] if self.by_layer else 0)

    def samples(self, pools_GU: Integers, rng: np.random.Generator) -> Iterator[Floats]:
        """Imbalances [batch, EP size, column] of each pool, NUM_BATCHES of each."""
        sizes = (
            self.num_draws * self.num_streams,
            NUM_BATCHES * len(self.layout.shared_tokens_X) // 8,
            NUM_BATCHES * len(self.eps) * self.num_columns,
        )
        limits = (_DRAWS_AT_ONCE, _FLOATS_AT_ONCE, _FLOATS_AT_ONCE)
        step = max(1, min(limit // max(1, size) for limit, size in zip(limits, sizes, strict=True)))
        for start in range(0, len(pools_GU), step):
            yield from self._of_pools(pools_GU[start : start + step], rng)

    def _of_pools(self, pools_GU: Integers, rng: np.random.Generator) -> Iterator[Floats]:
        found: list[list[Floats]] = [[] for _ in pools_GU]
        missing = np.arange(len(pools_GU))
        num_streams = self.num_streams
        while len(missing):
            pool_K = np.repeat(missing, num_streams)
            places = rng.integers(0, pools_GU.shape[1], (len(pool_K), self.num_draws))
            cut = cut_streams(self.layout, self.ends_P, pools_GU[pool_K[:, None], places], self.batch_tokens)
            imbalances = self.imbalances(cut)
            bounds = np.searchsorted(pool_K[cut.stream], np.append(missing, len(pools_GU)))
            for place, pool in enumerate(missing.tolist()):
                found[pool].append(imbalances[bounds[place] : bounds[place + 1]])
            missing = np.array([pool for pool in missing.tolist() if sum(map(len, found[pool])) < NUM_BATCHES], dtype=np.int64)
            num_streams = max(1, num_streams // 8)
        for parts in found:
            yield np.concatenate(parts)[:NUM_BATCHES]

    def imbalances(self, cut: Cut) -> Floats:
        """[batch, EP size, column] of every batch of `cut`."""
        crossing = cut.window < 0
        found = self.windows_PNC[np.maximum(cut.window, 0)]
        found[crossing] = self._imbalances((cut.own, self.own_X), (cut.shared, self.shared_X))
        return found

    def _imbalances(self, *products: tuple[sparse.csr_array, Floats]) -> Floats:
        """Of batches whose loads are the sum of these matrix products."""
        num_rows = products[0][0].shape[0]
        found = np.empty((num_rows, len(self.eps), self.num_columns))
        step = max(1, _FLOATS_AT_ONCE // max(1, products[0][1].shape[1]))
        for start in range(0, num_rows, step):
            loads_NX = np.asarray(sum(parts[start : start + step] @ rows_X for parts, rows_X in products))
            found[start : start + step] = self._of_loads(loads_NX.reshape(-1, *self.blocks_layers))
        return found

    def _of_loads(self, loads_NBL: Floats) -> Floats:
        """Busiest rank x EP size / rows, per layer, and the worst of the layers before them."""
        num, blocks, layers = loads_NBL.shape
        rows_NL = loads_NBL.sum(axis=1)
        found = np.empty((num, len(self.eps), self.num_columns))
        for place, ep in enumerate(self.eps):
            busiest_NL = loads_NBL.reshape(num, ep, blocks // ep, layers).sum(axis=2).max(axis=1)
            ratios_NL = busiest_NL * ep / rows_NL
            found[:, place, 0] = ratios_NL.max(axis=1)
            if self.by_layer:
                found[:, place, 1:] = ratios_NL
        return found


def _pools(layout: Layout, rng: np.random.Generator) -> Integers:
    """NUM_POOLS draws of as many units as there are; a pool without a token of its own fills no batch and is drawn again."""
    pools_GU = rng.integers(0, layout.num_units, (NUM_POOLS, layout.num_units))
    while len(empty := np.flatnonzero(layout.own_tokens_U[pools_GU].sum(axis=1) == 0)):
        pools_GU[empty] = rng.integers(0, layout.num_units, (len(empty), layout.num_units))
    return pools_GU
