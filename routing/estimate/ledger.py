"""Everything of one wave that the floor and the walk both add up: rows, stages, boundaries, gradients, pending adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from routing.core.allowance import proven_ceiling
from routing.core.fields import FieldError
from routing.core.layers import DecoderShape, LayerKind
from routing.core.placement import valid_ep_sizes
from routing.core.wave import Observed, Wave
from routing.estimate.adapters import Pending, pending_gradients
from routing.estimate.layout import Boundaries, RankRows, boundary_layouts, priced_ranks, rank_rows
from routing.estimate.lookup import Allowance
from routing.estimate.rates import Rates, expert_rank, head_chunk_bytes, rates_of
from routing.estimate.routed import Routing, ratio
from routing.estimate.stages import RoutedMemo, Stage, forward_stages, gradient_stages, head_stage

OBSERVED_MARGIN = Decimal("0.10")


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRouting:
    """The routing that prices a group in every layer, and in each where layers differ; `most` is never below a layer's own."""

    flat: Routing
    by_layer: tuple[Routing, ...] | None
    most: Routing


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """A wave prepared; lists are by group, then by priced rank. `ranks` are the numbers of the priced ranks.

    `hidden_rows` are the busiest rank's attention rows of each group, `pending` is null where no adapter gradient counts.
    """

    wave: Wave
    shape: DecoderShape
    rates: Rates
    ranks: tuple[int, ...]
    rows: tuple[tuple[RankRows, ...], ...]
    stages: tuple[tuple[dict[LayerKind, Stage], ...], ...]
    routings: tuple[GroupRouting, ...]
    gradient_groups: tuple[int, ...]
    hidden_rows: tuple[int, ...]
    boundaries: Boundaries
    pending: Pending | None
    head: Stage | None
    memo: RoutedMemo

    def boundary_bytes(self, group: int, rank: int, layer: int) -> int:
        """Saved inputs of layers 0..layer of one gradient group."""
        rows = self.rows[group][rank]
        attention, gdn = self.boundaries.attention[layer], self.boundaries.gdn[layer]
        return self.rates.hidden * (attention * rows.attention + gdn * rows.gdn)

    def gradient_bytes(self, group: int, num_layers: int) -> int:
        """The gradient of the busiest rank's rows, one a group; one a boundary where the model has dense layers."""
        return self.rates.hidden * self.hidden_rows[group] * (1 if self.rates.all_moe else num_layers)


def open_ledger(wave: Wave, shape: DecoderShape, allowances: Sequence[Allowance], *, lower: bool) -> Ledger:
    """`wave` prepared for pricing; `allowances` has one a group."""
    topology = wave.topology
    rates = rates_of(shape, topology.ep, topology.cp, expert_rank(wave.adapter))
    ranks = priced_ranks(wave)
    rows = tuple(rank_rows(group, topology, ranks, rates.executor) for group in wave.groups)
    gradient_groups = tuple(at for at, group in enumerate(wave.groups) if group.gradient)
    held = wave.te_workspaces_held
    stages = tuple(
        tuple(
            gradient_stages(rates, one, group=at, te_workspaces=not held)
            if group.gradient
            else forward_stages(rates, one, group=at)
            for one in rows[at]
        )
        for at, group in enumerate(wave.groups)
    )
    return Ledger(
        wave=wave,
        shape=shape,
        rates=rates,
        ranks=ranks,
        rows=rows,
        stages=stages,
        routings=tuple(group_routing(allowance, wave.observed, shape, lower=lower) for allowance in allowances),
        gradient_groups=gradient_groups,
        hidden_rows=tuple(max(group.attention_rows) for group in wave.groups),
        boundaries=boundary_layouts(shape, wave.layer_inputs),
        pending=_pending(wave, shape) if gradient_groups else None,
        head=_head(wave, shape),
        memo=RoutedMemo(),
    )


def group_routing(allowance: Allowance, observed: Observed | None, shape: DecoderShape, *, lower: bool) -> GroupRouting:
    """The allowance with what was observed beside it: raising rows, and lowering the allowance where `lower` asks for it.

    At EP 1 there is nothing to observe.
    """
    if observed is None or allowance.ep == 1:
        return GroupRouting(flat=allowance.flat, by_layer=allowance.by_layer, most=allowance.most)
    flat = _with_observed(allowance.flat, observed.worst, lower=lower)
    if allowance.by_layer is None and observed.share_by_layer is None:
        return GroupRouting(flat=flat, by_layer=None, most=flat)
    shares = observed.share_by_layer or (observed.share,) * shape.num_layers
    own = allowance.by_layer or (allowance.flat,) * shape.num_layers
    by_layer = (_with_observed(one, share, lower=lower) for one, share in zip(own, shares, strict=True))
    return GroupRouting(flat=flat, by_layer=tuple(by_layer), most=flat)


def require_shape(wave: Wave, shape: DecoderShape) -> None:
    """FieldError for what only the model's shape can tell.

    Experts that EP doesn't divide, an observed share above what is proven, lists of another number of layers, GDN without any.
    """
    ep, layers = wave.topology.ep, shape.num_layers
    if ep > 1 and shape.num_experts % ep:
        known = ", ".join(map(str, valid_ep_sizes(shape.num_experts)))
        raise FieldError(("topology", "ep"), f"{ep} does not divide {shape.num_experts} experts; valid sizes: 1, {known}")
    if wave.observed is not None:
        _require_possible(wave.observed, ep, shape)
    by_layer: Mapping[str, Sequence[object] | None] = {
        "layer_inputs": wave.layer_inputs,
        "observed.share_by_layer": wave.observed.share_by_layer if wave.observed else None,
    }
    for name, values in by_layer.items():
        if values is not None and len(values) != layers:
            raise FieldError((name,), f"{len(values)} layers, {shape.name} has {layers}")
    if shape.has_gdn:
        return
    if wave.layer_inputs is not None and "gdn" in wave.layer_inputs:
        raise FieldError(("layer_inputs", wave.layer_inputs.index("gdn")), f"gdn, and {shape.name} has no GDN layer")
    for at, group in enumerate(wave.groups):
        if group.gdn_rows is not None:
            raise FieldError(("groups", at, "gdn_rows"), f"{shape.name} has no GDN layer")


def _require_possible(observed: Observed, ep: int, shape: DecoderShape) -> None:
    ceiling, reason = proven_ceiling(ep, num_experts=shape.num_experts, top_k=shape.top_k)
    if observed.worst > ceiling:
        raise FieldError(("observed",), f"share {observed.worst} is above {float(ceiling):g}, the most there can be: {reason}")


def _with_observed(routing: Routing, share: Decimal | None, *, lower: bool) -> Routing:
    if share is None:
        return routing
    rho = routing[0]
    seen = ratio(share + OBSERVED_MARGIN)
    if seen[0] * rho[1] > rho[0] * seen[1]:
        return rho, seen
    return (seen, None) if lower else (rho, None)


def _pending(wave: Wave, shape: DecoderShape) -> Pending | None:
    adapter = wave.adapter
    if adapter is None or not (adapter.pending_gradients and wave.terms.adapter_gradients):
        return None
    return pending_gradients(shape, wave.topology.ep, adapter)


def _head(wave: Wave, shape: DecoderShape) -> Stage | None:
    if wave.head is None:
        return None
    return head_stage(head_chunk_bytes(shape, projected_rows=wave.head.projected_rows, targets=wave.head.targets))
