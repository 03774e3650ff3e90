"""Entries of single layers, beside those of all layers: the same rule on one layer's imbalances.

They stand in the table on demand: 40 layers at nine places are 360 entries. What an entry of all layers says of policies,
coverage and held-out batches is said there alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from routing.core.allowance import Entry, Parameter
from routing.fit.cell import Cell
from routing.fit.counts import Counts
from routing.fit.evidence import counted_evidence
from routing.fit.recut import real_batches
from routing.fit.steps import Allowed, stepped, within


def layer_entries(cells: Sequence[Cell], counts: Sequence[Counts], of_all: Sequence[Entry]) -> tuple[Entry, ...]:
    """By layer, then as the entries of all layers come; none is above that of all layers."""
    shape = cells[0].runs[0].shape
    eps = sorted({cell.ep for cell in cells})
    sizes = sorted({cell.batch_tokens for cell in cells}, reverse=True)
    batches = {size: [real_batches(of_run, batch_tokens=size, eps=eps) for of_run in counts] for size in sizes}
    limits = {(one.batch_tokens, one.ep): _limit(one) for one in of_all}
    parameters = {(one.batch_tokens, one.ep): one.evidence.parameters for one in of_all}
    found = []
    for layer in shape.moe_layers:
        own = {(cell.batch_tokens, cell.ep): cell.of_layer(layer, batches[cell.batch_tokens]) for cell in cells}
        raws = {place: cell.raw for place, cell in own.items()}
        allowed = within(stepped(raws, num_experts=shape.num_experts, top_k=shape.top_k), limits)
        found += [_entry(own[place], layer, one, parameters[place]) for place, one in allowed.items()]
    return tuple(found)


def _limit(entry: Entry) -> Allowed:
    evidence = entry.evidence
    assert evidence.raw_bound is not None
    return Allowed(
        allowance=entry.allowance,
        raw_bound=Fraction(evidence.raw_bound),
        ceiling=evidence.ceiling,
        ceiling_reason=evidence.ceiling_reason,
        binds=evidence.binds,
    )


def _entry(cell: Cell, layer: int, allowed: Allowed, parameters: dict[str, Parameter]) -> Entry:
    evidence = counted_evidence(cell, allowed, parameters=parameters)
    return Entry(
        ep=cell.ep,
        batch_tokens=cell.batch_tokens,
        layer=layer,
        allowance=allowed.allowance,
        status="fitted" if cell.is_resampled else "headroom",
        evidence=replace(evidence, policies=(), coverage=(), warnings=(), worst_layers=(), held_out=None),
    )
