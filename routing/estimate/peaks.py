"""The two forms of the same sum, by rank: the floor, and the walk over layers.

    floor = all boundaries + gradients + the largest stage + X
    walk  = max over layers i of [boundaries of layers 0..i + gradients + stage_i(rho_i) + pending gradients of layers i..]

What is the same on every rank (outputs, cold transients, the HybridEP buffer) stands outside. A layer is never priced above the
floor's price of its kind, so the walk is never above the floor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from routing.core.layers import LayerKind
from routing.estimate.ledger import Ledger
from routing.estimate.routed import Routing
from routing.estimate.stages import PricedStage, Stage

_NO_ROUTING: Routing = ((1, 1), None)  # of the LM head, which has no routed rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """What is alive at one instant on one rank. `rank` is its place among the priced ranks.

    `boundary_layers` counts the layers of the binding group whose boundary is alive; `own_allowance` is whether the stage was
    priced at its layer's own routing.
    """

    rank: int
    priced: PricedStage
    boundary_bytes: int
    boundary_layers: int
    gradient_bytes: int
    adapter_bytes: int
    own_allowance: bool = False

    @property
    def without_adapters(self) -> int:
        """Bytes of this rank without pending adapter gradients."""
        return self.boundary_bytes + self.gradient_bytes + self.priced.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank."""
        return self.without_adapters + self.adapter_bytes


def floor_peaks(ledger: Ledger) -> tuple[Peak, ...]:
    """One a priced rank: every boundary beside the largest stage, and the rank's own adapter extra."""
    last = ledger.shape.num_layers - 1
    gradient = sum(ledger.gradient_bytes(group, last + 1) for group in ledger.gradient_groups)
    peaks = []
    for rank in range(len(ledger.ranks)):
        largest = max(_flat_stages(ledger, rank), key=lambda one: (one.num_bytes, -1 if one.layer is None else one.layer))
        peaks.append(
            Peak(
                rank=rank,
                priced=largest,
                boundary_bytes=sum(ledger.boundary_bytes(group, rank, last) for group in ledger.gradient_groups),
                boundary_layers=last + 1 if ledger.gradient_groups else 0,
                gradient_bytes=gradient,
                adapter_bytes=adapter_extra(ledger, rank),
            )
        )
    return tuple(peaks)


def adapter_extra(ledger: Ledger, rank: int) -> int:
    """X of one rank: the most that pending gradients stand above boundaries that are released by then."""
    pending = ledger.pending
    if pending is None:
        return 0
    most = 0
    if pending.in_decoder:
        hidden, (in_attention, in_gdn) = ledger.rates.hidden, ledger.boundaries
        for group in ledger.gradient_groups:
            rows = ledger.rows[group][rank]
            attention, gdn = hidden * rows.attention, hidden * rows.gdn
            counts = zip(pending.from_layer, in_attention, in_gdn, strict=True)
            alive = max(above + attention * at + gdn * gt for above, at, gt in counts)
            most = max(most, alive - ledger.boundary_bytes(group, rank, ledger.shape.num_layers - 1))
    return pending.outside + most


def walk_peak(ledger: Ledger) -> Peak:
    """The largest instant over ranks, groups and layers; the first rank and the last layer of several equal ones."""
    best: Peak | None = None
    for rank in range(len(ledger.ranks)):
        for instant in _beside_all_boundaries(ledger, rank):
            if best is None or instant.num_bytes > best.num_bytes:
                best = instant
        for group in ledger.gradient_groups:
            best = _backward(ledger, rank, group, best)
    assert best is not None  # a wave has a group, and a group has a stage
    return best


def _beside_all_boundaries(ledger: Ledger, rank: int) -> Iterator[Peak]:
    """The stages that run while nothing is released yet: those of groups without gradient, and the LM head."""
    layers = ledger.shape.num_layers
    stages = [
        one
        for group, by_rank in enumerate(ledger.stages)
        if group not in ledger.gradient_groups
        for one in _forward(ledger, group, by_rank[rank])
    ]
    if ledger.head is not None:
        stages.append((ledger.memo.price(ledger.head, _NO_ROUTING), False))
    for priced, own in stages:
        yield Peak(
            rank=rank,
            priced=priced,
            boundary_bytes=sum(ledger.boundary_bytes(group, rank, layers - 1) for group in ledger.gradient_groups),
            boundary_layers=layers if ledger.gradient_groups else 0,
            gradient_bytes=sum(ledger.gradient_bytes(group, layers) for group in ledger.gradient_groups),
            adapter_bytes=ledger.pending.outside if ledger.pending else 0,
            own_allowance=own,
        )


def _forward(ledger: Ledger, group: int, stages: dict[LayerKind, Stage]) -> Iterator[tuple[PricedStage, bool]]:
    """The stage of every layer of a group without gradient, and whether its own routing priced it."""
    flat = {kind: ledger.memo.price(stage, ledger.routings[group].flat) for kind, stage in stages.items()}
    if ledger.routings[group].by_layer is None:
        yield from ((priced, False) for priced in flat.values())
        return
    for layer, kind in enumerate(ledger.rates.kinds):
        yield _own_or_flat(ledger, group, stages[kind], flat[kind], layer)


def _backward(ledger: Ledger, rank: int, group: int, best: Peak | None) -> Peak | None:
    """`best`, or the largest instant above it of one group's layers, from the last down.

    The other gradient groups' boundaries are alive beside them, or, after one of these, all but its.
    """
    pending, by_layer = ledger.pending, ledger.routings[group].by_layer
    stages, last = ledger.stages[group][rank], ledger.shape.num_layers - 1
    flat = {kind: ledger.memo.price(stage, ledger.routings[group].flat) for kind, stage in stages.items()}
    others = [ledger.boundary_bytes(other, rank, last) for other in ledger.gradient_groups if other != group]
    elsewhere, smallest = sum(others), min(others, default=None)
    other_gradients = sum(ledger.gradient_bytes(other, last + 1) for other in ledger.gradient_groups if other != group)
    most = (
        min(ledger.memo.price(stage, ledger.routings[group].most).num_bytes, flat[kind].num_bytes)
        for kind, stage in stages.items()
    )
    most_beside = max(most) + (pending.outside + pending.in_decoder if pending else 0)
    beat = -1 if best is None else best.num_bytes
    for layer in range(last, -1, -1):
        alive = elsewhere + ledger.boundary_bytes(group, rank, layer)
        gradient = other_gradients + ledger.gradient_bytes(group, layer + 1)
        if alive + gradient + most_beside <= beat:
            break  # what follows has fewer boundaries and at most this beside them
        priced, own = flat[ledger.rates.kinds[layer]], False
        if by_layer is not None:
            priced, own = _own_or_flat(ledger, group, stages[ledger.rates.kinds[layer]], priced, layer)
        adapters = pending.outside + pending.from_layer[layer] if pending else 0
        more = pending.in_decoder - pending.from_layer[layer] if pending else 0
        if smallest is not None and more > smallest:
            alive, adapters = alive - smallest, adapters + more
        if alive + gradient + adapters + priced.num_bytes > beat:
            beat = alive + gradient + adapters + priced.num_bytes
            best = Peak(
                rank=rank,
                priced=priced if priced.layer == layer else priced._replace(layer=layer),
                boundary_bytes=alive,
                boundary_layers=layer + 1,
                gradient_bytes=gradient,
                adapter_bytes=adapters,
                own_allowance=own,
            )
    return best


def _own_or_flat(ledger: Ledger, group: int, stage: Stage, flat: PricedStage, layer: int) -> tuple[PricedStage, bool]:
    """A layer at its own routing, unless the routing for all layers prices it lower; both hold for it."""
    by_layer = ledger.routings[group].by_layer
    if by_layer is None:
        return flat, False
    own = ledger.memo.price(stage, by_layer[layer], layer=layer)
    return (own, True) if own.num_bytes <= flat.num_bytes else (flat._replace(layer=layer), False)


def _flat_stages(ledger: Ledger, rank: int) -> Iterator[PricedStage]:
    for group, by_rank in enumerate(ledger.stages):
        for stage in by_rank[rank].values():
            yield ledger.memo.price(stage, ledger.routings[group].flat)
    if ledger.head is not None:
        yield ledger.memo.price(ledger.head, _NO_ROUTING)
