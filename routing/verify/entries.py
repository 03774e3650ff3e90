"""What an entry of an allowance table says that it saw, counted again from the runs that it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from routing.verify.batches import Worst, batch_ranks, cut, worst
from routing.verify.files import Integers
from routing.verify.tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedBatches:
    """The full batches of one size of a run: their tokens, each segment once, and the ranks' rows by EP size, [B, L, R]."""

    num_batches: int
    num_tokens: int
    ranks: Mapping[int, Integers]
    layers: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What one run shows of an entry; `worst` is None where no batch is full."""

    num_batches: int
    num_tokens: int
    worst: Worst | None


def counted_batches(
    tree: Tree, ranks: Mapping[int, Integers], layers: Sequence[int], *, batch_tokens: int, order: str | int
) -> CountedBatches:
    """Cuts a recounted run; `ranks` are the rows by EP size, [S, L, R], `layers` the decoder layers that the L are."""
    batches = cut(tree, batch_tokens=batch_tokens, order=order)
    return CountedBatches(
        num_batches=len(batches),
        num_tokens=sum(int(tree.tokens_S[segments].sum()) for segments in batches),
        ranks={ep: batch_ranks(batches, ranks_SLR) for ep, ranks_SLR in ranks.items()},
        layers=layers,
    )


def seen(batches: CountedBatches, *, ep: int, layer: int | None) -> Seen:
    """The largest imbalance in `layer`, or in any."""
    layers = list(batches.layers)
    places = slice(None) if layer is None else slice(layers.index(layer), layers.index(layer) + 1)
    found = worst(batches.ranks[ep][:, places], layers[places])
    return Seen(num_batches=batches.num_batches, num_tokens=batches.num_tokens, worst=found)


def largest(ones: Sequence[Seen], *, ep: int) -> Worst | None:
    """The first of the largest over runs."""
    known = [one.worst for one in ones if one.worst is not None]
    return max(known, key=lambda one: Fraction(one.busiest_rows * ep, one.routed_rows), default=None)


def recount_differences(said: Mapping[str, object], found: Mapping[str, object]) -> Iterator[str]:
    """`num_batches 17, 16 counted again` for every name of `found` that the table says otherwise."""
    for name, value in found.items():
        if said[name] != value:
            yield f"{name} {said[name]}, {value} counted again"
