"""A loop: an agent that says one piece of text again and again, for a whole batch or a share of it.

    beyond = min(MOST_BEYOND, BEYOND x batch tokens / tokens that a trajectory brings)
    q      = imbalance that segments with 1 - beyond of the tokens do not exceed
    r      = 1 + HEADROOM (q - 1): a loop's text is unlike the rest
    share  = min(1, LENGTH x tokens of the longest trajectory / batch tokens)
    R      = share x r + (1 - share) x H

Routed rows of text that repeats are those of its segment over and over, so its imbalance is the segment's; and a mix is at most
as uneven as the mean of both, by tokens. The smaller a batch, the shorter a loop that fills it, and the odder its text may be.
Source: batches above `strat-boot-v1` were loops, and at 2,000 to 8,000 tokens more of them were above `strat-boot-v2`, which
took 5% at every size; the four numbers are choices, made on toy policies (docs/decisions/0007 and 0008). Hundreds of segments
tell q where a few batches tell nothing of the next loop. It leaves out text that no segment is like.

N EP sizes, C columns (the worst over layers, then each layer), S segments, B blocks of experts, L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil

import numpy as np

from routing.fit.counts import Counts, Floats, Integers, rank_loads

BEYOND = Decimal("0.01")
MOST_BEYOND = Decimal("0.05")
HEADROOM = Decimal("1.5")
LENGTH = 2
_DIGITS = 9  # as of the levels


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """q by EP size and column, the share of tokens in text beyond it, and the share of a batch that one trajectory may fill."""

    imbalance_NC: Floats
    beyond_share: Fraction
    share: Fraction

    def text(self, place: tuple[int, int]) -> Fraction:
        """r of one EP size and column."""
        return 1 + Fraction(HEADROOM) * (Fraction(repr(float(self.imbalance_NC[place]))) - 1)

    def bound(self, place: tuple[int, int], rest: Fraction) -> Fraction:
        """R, where the rest of the batch is at `rest`."""
        return self.share * self.text(place) + (1 - self.share) * rest


def repeated_text(counts: Counts, *, batch_tokens: int, eps: Sequence[int], by_layer: bool) -> Repeated:
    """Every distinct segment of the counts, weighted by its tokens; each EP size divides the number of blocks."""
    segments, first = np.unique(counts.segment_ids, return_index=True)
    tokens_S = counts.num_tokens[first]
    loads_BSL = np.moveaxis(counts.loads_SBL[segments], 1, 0)
    num_layers = loads_BSL.shape[2]
    beyond = min(Fraction(MOST_BEYOND), Fraction(BEYOND) * batch_tokens * counts.num_trajectories / int(tokens_S.sum()))
    rows_SL = loads_BSL.sum(axis=0)
    found = np.empty((len(eps), 1 + (num_layers if by_layer else 0)))
    for place, ep in enumerate(eps):
        ratios_SL = rank_loads(loads_BSL, ep, is_strided=counts.is_strided).max(axis=0) * ep / rows_SL
        found[place, 0] = _quantile(ratios_SL.max(axis=1), tokens_S, beyond)
        for layer in range(num_layers) if by_layer else ():
            found[place, 1 + layer] = _quantile(ratios_SL[:, layer], tokens_S, beyond)
    share = min(Fraction(1), Fraction(LENGTH * counts.longest_trajectory_tokens, batch_tokens))
    return Repeated(imbalance_NC=np.round(found, _DIGITS), beyond_share=beyond, share=share)


def _quantile(values_S: Floats, tokens_S: Integers, beyond: Fraction) -> float:
    """The smallest value that segments with all but `beyond` of all tokens do not exceed."""
    order = np.argsort(values_S, kind="stable")
    upto = np.cumsum(tokens_S[order])
    return float(values_S[order][np.searchsorted(upto, ceil((1 - beyond) * int(upto[-1])))])
