"""What a router may get wrong with a token, found on its device without reading anything back: one byte a token and layer.

G layers, T tokens, K experts a token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from routing.core.errors import CheckFailedError

NOT_FINITE, DEAD, OUT_OF_RANGE, REPEATED = 1, 2, 4, 8
# In the order in which they are told.
FAULTS = {
    NOT_FINITE: "NaN or Inf router weights",
    DEAD: "the same weight for every expert (all logits equal)",
    OUT_OF_RANGE: "ids out of range",
    REPEATED: "one expert twice in a token",
}
OF_POLICY = NOT_FINITE | DEAD  # what a policy may do with some text; the others show that its routing was read wrongly
# Fewer counted tokens than this may all tie: at BF16 and top-2 about one token in 150 does.
_MIN_TOKENS_TO_JUDGE = 16


class RouterError(CheckFailedError):
    """A router that gave no number, or one for all experts, to tokens of `segment_ids`."""

    def __init__(self, message: str, *, segment_ids: Sequence[int]) -> None:
        super().__init__(message)
        self.segment_ids = tuple(segment_ids)


def fault_bits(ids_GKT: Tensor, weights_GKT: Tensor | None, counted_T: Tensor, *, num_experts: int) -> Tensor:
    """uint8 [G, T]: the bits of FAULTS that a counted token shows in each layer, 0 for the others; ids are int32, -1 at least."""
    ids_GKT = ids_GKT + 1  # none is negative, so that two are the same where no bit differs: faster than comparing them
    out_of_range_GT = (ids_GKT.amin(1) == 0) | (ids_GKT.amax(1) > num_experts)
    bits_GT = (out_of_range_GT.view(torch.uint8) * OUT_OF_RANGE).add_(_repeats(ids_GKT).view(torch.uint8), alpha=REPEATED)
    if weights_GKT is not None:
        low_GT, high_GT = weights_GKT.amin(1), weights_GKT.amax(1)
        is_number_GT = (high_GT - high_GT) == (low_GT - low_GT)  # a number less itself is 0, NaN or Inf NaN
        bits_GT.add_((~is_number_GT).view(torch.uint8), alpha=NOT_FINITE)
        ties_GT = (low_GT == high_GT) & ~out_of_range_GT  # ids out of range look alike, and are no router's
        bits_GT.add_(_is_dead(ids_GKT, ties_GT, counted_T).view(torch.uint8), alpha=DEAD)
    return bits_GT.mul_(counted_T.view(torch.uint8))


def _repeats(ids_GKT: Tensor) -> Tensor:
    """[G, T]: the tokens with one expert at two of their K places."""
    least_GT = torch.ones_like(ids_GKT[:, 0])
    for shift in range(1, ids_GKT.shape[1]):
        least_GT = torch.minimum(least_GT, (ids_GKT[:, shift:] ^ ids_GKT[:, :-shift]).amin(1))
    return least_GT == 0


def _is_dead(ids_GKT: Tensor, ties_GT: Tensor, counted_T: Tensor) -> Tensor:
    """[G, 1]: the layers whose router does not choose: all of many counted tokens tie and go to the same experts.

    One token may tie by chance in BF16, and a sparse mixer gives most of what it chooses a weight of one.
    """
    first_GK1 = ids_GKT.index_select(2, counted_T.int().argmax().view(1))
    is_first_GT = (ids_GKT ^ first_GK1).amax(1) == 0
    is_alike_G1 = ((ties_GT & is_first_GT) | ~counted_T).all(1, keepdim=True)
    return is_alike_G1 & (counted_T.sum() >= _MIN_TOKENS_TO_JUDGE) & (ids_GKT.shape[1] > 1)
