"""What is alive while one layer of one group is computed on one rank, by part; the part that routing decides comes last.

    decoder stage = mixer + residual/norm + router state + shared FC1/GLU + MoE(m, R) + TE workspaces
    MoE(m, R)     = R Q + max(m, R) P        Q the routed stage, P the shared expert's return
    no gradient   = forward MoE(m, R) + 4 H b a row, nothing else

A dense layer has 3F + H in place of the router, the shared expert and MoE (derived, not published).
"""

from collections.abc import Iterator
from typing import NamedTuple

from routing.core.layers import LayerKind
from routing.estimate.layout import RankRows
from routing.estimate.rates import TE_WORKSPACE_BYTES, PerRow, Rates
from routing.estimate.routed import RoutedPrice, RoutedStage, Routing, routed_price


class Part(NamedTuple):
    """Named bytes; rows and bytes a row where they are one pair."""

    name: str
    rows: int | None
    bytes_per_row: int | None
    num_bytes: int


class Stage(NamedTuple):
    """A stage without its routed bytes; `group` and `layer` are null for the LM head, `routed` is empty for dense layers.

    `layer` is the last one of its kind, `beside` are bytes that don't depend on rows, named.
    """

    group: int | None
    layer: int | None
    rows: int
    even_rows: int
    per_row: PerRow
    beside: tuple[tuple[str, int], ...]
    fixed_bytes: int
    routed: tuple[RoutedStage, ...]
    return_bytes: int

    def parts(self) -> Iterator[Part]:
        """What `fixed_bytes` are."""
        yield from (Part(name, self.rows, each, self.rows * each) for name, each in self.per_row.parts)
        yield from (Part(name, None, None, num_bytes) for name, num_bytes in self.beside)


class PricedStage(NamedTuple):
    """A stage at a routing; `layer` is the one that was priced."""

    stage: Stage
    layer: int | None
    routed: RoutedPrice | None
    num_bytes: int


class RoutedMemo:
    """Routed prices by what they depend on: ranks and layers share most of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[RoutedStage, ...], int, Routing], RoutedPrice] = {}

    def price(self, stage: Stage, routing: Routing, *, layer: int | None = None) -> PricedStage:
        """`stage` at `routing`, as of `layer` (its own by default)."""
        at = stage.layer if layer is None else layer
        if not stage.routed:
            return PricedStage(stage, at, None, stage.fixed_bytes)
        key = (stage.routed, stage.even_rows, routing)
        routed = self._known.get(key)
        if routed is None:
            routed = self._known[key] = routed_price(stage.routed, stage.even_rows, routing)
        returned = max(stage.rows, routed.rows) * stage.return_bytes
        return PricedStage(stage, at, routed, stage.fixed_bytes + routed.num_bytes + returned)


def gradient_stages(rates: Rates, rows: RankRows, *, group: int, te_workspaces: bool) -> dict[LayerKind, Stage]:
    """The stage of each layer kind of a gradient group on one rank."""
    workspaces: tuple[tuple[str, int], ...] = (("te_workspaces", TE_WORKSPACE_BYTES),) if te_workspaces else ()
    retained: tuple[tuple[str, int], ...] = () if rows.retained is None else (("executor_retention", rows.retained),)
    found = {}
    for kind, flat in rates.gradient_rows.items():
        per_row, beside = flat, workspaces
        if kind.mixer == "attention" and retained:
            per_row, beside = rates.mirrored_rows[kind], retained + workspaces
        routed = rates.routed_gradient if kind.feed_forward == "moe" else ()
        found[kind] = _stage(rates, kind, rows, per_row, beside, routed, rates.shared_return_gradient, group)
    return found


def forward_stages(rates: Rates, rows: RankRows, *, group: int) -> dict[LayerKind, Stage]:
    """The stage of each layer kind of a group without gradient."""
    found = {}
    for kind, per_row in rates.forward_rows.items():
        routed = rates.routed_forward if kind.feed_forward == "moe" else ()
        found[kind] = _stage(rates, kind, rows, per_row, (), routed, rates.shared_return_forward, group)
    return found


def head_stage(num_bytes: int) -> Stage:
    """The LM head: an alternative to a decoder stage, without TE beside it."""
    return Stage(None, None, 0, 0, PerRow((), 0), (("lm_head", num_bytes),), num_bytes, (), 0)


def _stage(
    rates: Rates,
    kind: LayerKind,
    rows: RankRows,
    per_row: PerRow,
    beside: tuple[tuple[str, int], ...],
    routed: tuple[RoutedStage, ...],
    return_bytes: int,
    group: int,
) -> Stage:
    num_rows = rows.of(kind.mixer)
    fixed = num_rows * per_row.total + sum([num_bytes for _, num_bytes in beside])
    returned = return_bytes if routed else 0
    return Stage(group, rates.last_of_kind[kind], num_rows, rows.even(kind.mixer), per_row, beside, fixed, routed, returned)
