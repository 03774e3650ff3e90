"""What a search over splits and sizes asks: a price that no layout of some rows is below, and the rows that fit a budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from routing.core.fields import MAX_ROWS, whole
from routing.core.layers import DecoderShape
from routing.core.wave import Group, Topology, Wave
from routing.estimate.layout import RankRows
from routing.estimate.lookup import AllowanceBook
from routing.estimate.price import PriceOptions
from routing.estimate.rates import Rates, rates_of
from routing.estimate.result import Estimate
from routing.estimate.routed import Routing
from routing.estimate.stages import RoutedMemo, gradient_stages

EVEN: Routing = ((1, 1), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class LargestWave:
    """The most rows whose `required_bytes` fit; 0 where none do, `estimate` then being that of one row.

    `binding_term` is the largest term of the estimate.
    """

    rows: int
    wave: Wave
    estimate: Estimate
    binding_term: str


def lower_bound(total_rows: int, topology: Topology, shape: DecoderShape, book: AllowanceBook, options: PriceOptions) -> int:
    """Bytes that one gradient group of `total_rows` takes at least, however its rows are laid out over the ranks.

    Every rank at floor(rows / CP) rows in both layouts, with the least attention state; nothing that a wave may be without:
    adapters, workspaces, buffers, outputs. The sum of boundaries and any stage is convex in the rows, so its maximum over ranks
    is not below this. Under `lower_by_observed` the routing is even, since what was observed isn't known here.
    """
    whole(("total_rows",), total_rows, low=1, high=topology.cp * MAX_ROWS)
    rates = rates_of(shape, topology.ep, topology.cp, 0)
    found = book.find(ep=topology.ep, rows=total_rows, mode=options.mode, strict=False)
    rows = total_rows // topology.cp
    even = -(-rows * topology.cp // topology.ep) if topology.shares_rows else rows
    least = None if topology.cp == 1 else rows * rates.executor.least
    ranked = RankRows(attention=rows, gdn=rows, even_attention=even, even_gdn=even, retained=least)
    stages = list(gradient_stages(rates, ranked, group=0, te_workspaces=False).items())
    flat = EVEN if options.lower_by_observed else found.flat
    by_layer = found.by_layer if options.per_layer and not options.lower_by_observed else None
    memo = RoutedMemo()
    if by_layer is None:
        largest = max(memo.price(stage, flat).num_bytes for _, stage in stages)
        return _alive(rates, rows, shape.num_layers) + largest
    kinds = dict(stages)
    return max(
        _alive(rates, rows, layer + 1) + memo.price(kinds[kind], by_layer[layer], layer=layer).num_bytes
        for layer, kind in enumerate(rates.kinds)
    )


def largest_wave(
    topology: Topology,
    budget_bytes: int,
    shape: DecoderShape,
    *,
    template: Wave,
    price_of: Callable[[Wave], Estimate],
    batch_sizes: Sequence[int],
) -> LargestWave:
    """The most rows, at even share over the ranks and one packed group, whose `required_bytes` are within the budget.

    Between two fitted batch sizes the allowance is one and the price never falls with rows, so each such range is bisected, the
    largest first: a larger batch has a smaller allowance, and may fit where a smaller one does not. `template` gives all but the
    groups: adapter, outputs, what is held.
    """
    whole(("budget_bytes",), budget_bytes, low=1, high=10**18)

    def priced(rows: int) -> tuple[Wave, Estimate]:
        wave = replace(template, topology=topology, groups=(even_group(rows, topology, shape),))
        return wave, price_of(wave)

    per_row = 2 * shape.hidden_size * shape.num_layers  # the boundaries alone
    most = min(topology.cp * (budget_bytes // per_row + 1), topology.cp * MAX_ROWS)
    for low, high in _ranges(batch_sizes, most):
        if priced(low)[1].required_bytes > budget_bytes:
            continue
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if priced(middle)[1].required_bytes <= budget_bytes else (low, middle - 1)
        return _answer(low, *priced(low))
    return _answer(0, *priced(1))


def even_group(rows: int, topology: Topology, shape: DecoderShape) -> Group:
    """One packed gradient group of `rows`, as even over the ranks as whole rows are, without executor stages."""
    by_rank = even_rows(rows, topology.cp)
    return Group(attention_rows=by_rank, gdn_rows=by_rank if shape.has_gdn else None, longest_packed_tokens=rows)


def even_rows(rows: int, num_ranks: int) -> tuple[int, ...]:
    """`rows` over ranks, the first ones one longer where they don't divide."""
    return tuple(rows // num_ranks + (rank < rows % num_ranks) for rank in range(num_ranks))


def _alive(rates: Rates, rows: int, boundaries: int) -> int:
    return rates.hidden * rows * (boundaries + (1 if rates.all_moe else boundaries))


def _ranges(batch_sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(first, last) rows at one allowance, from the largest; rows below the smallest fitted size share its allowance."""
    starts = [1, *sorted(batch_sizes)[1:]]
    ends = [*(start - 1 for start in starts[1:]), most]
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        if start <= min(end, most):
            yield start, min(end, most)


def _answer(rows: int, wave: Wave, estimate: Estimate) -> LargestWave:
    binding = max(estimate.terms, key=lambda term: term.bytes)
    return LargestWave(rows=rows, wave=wave, estimate=estimate, binding_term=binding.name)
