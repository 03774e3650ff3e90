"""What an entry of an allowance table says that it saw, counted again from the runs that it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from routing.verify.batches import Integers, Worst, batch_ranks, cut, worst
from routing.verify.tree import Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedRun:
    """A recounted run: its tree, its ranks' rows by EP size, [S, L, R], and the decoder layers that the L are."""

    content_hash: str
    tree: Tree
    ranks: Mapping[int, Integers]
    layers: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What one run shows of an entry; `worst` is None where no batch is full."""

    num_batches: int
    num_tokens: int
    worst: Worst | None


def seen(run: CountedRun, *, ep: int, batch_tokens: int, layer: int | None, order: str | int) -> Seen:
    """The full batches of one size and the largest imbalance in `layer`, or in any."""
    batches = cut(run.tree, batch_tokens=batch_tokens, order=order)
    layers = list(run.layers)
    places = slice(None) if layer is None else slice(layers.index(layer), layers.index(layer) + 1)
    found = worst(batch_ranks(batches, run.ranks[ep])[:, places], layers[places])
    num_tokens = sum(int(run.tree.tokens_S[segments].sum()) for segments in batches)
    return Seen(num_batches=len(batches), num_tokens=num_tokens, worst=found)


def largest(ones: Sequence[Seen], *, ep: int) -> Worst | None:
    """The first of the largest over runs."""
    known = [one.worst for one in ones if one.worst is not None]
    return max(known, key=lambda one: Fraction(one.busiest_rows * ep, one.routed_rows), default=None)


def recount_differences(said: Mapping[str, object], found: Mapping[str, object]) -> Iterator[str]:
    """`num_batches 17, 16 counted again` for every name of `found` that the table says otherwise."""
    for name, value in found.items():
        if said[name] != value:
            yield f"{name} {said[name]}, {value} counted again"
