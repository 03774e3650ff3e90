"""Small allowance tables for one model, simulated, with evidence that says so."""

from collections.abc import Mapping
from decimal import Decimal

from routing.core.allowance import (
    TABLE_SCHEMA_VERSION,
    AllowanceTable,
    Entry,
    Evidence,
    Generated,
    Layer,
    TableModel,
    entries_hash,
    proven_ceiling,
)
from routing.core.layers import DecoderShape
from routing.core.placement import PLACEMENT

Values = Mapping[tuple[int, int] | tuple[int, int, Layer], str]  # (ep, batch_tokens[, layer]) to an allowance


def table_of(shape: DecoderShape, values: Values) -> AllowanceTable:
    """A table that holds `values` and nothing else; layer is `all` where none is named."""
    routed = shape.routed
    fields = {name: getattr(routed, name) for name in routed.__slots__}
    model = TableModel(name=shape.name, shape_hash=routed.shape_hash, aliases=(), **fields)
    entries = tuple(_entry(shape, (*key, "all")[:3], Decimal(value)) for key, value in values.items())
    generated = Generated(tool_version="test", tool_commit=None, generated_at="2025-01-01T00:00:00Z")
    return AllowanceTable(
        schema_version=TABLE_SCHEMA_VERSION,
        model=model,
        placement=PLACEMENT,
        generated=generated,
        entries=entries,
        content_hash=entries_hash(model, PLACEMENT, entries, generated),
    )


def _entry(shape: DecoderShape, key: tuple[object, ...], allowance: Decimal) -> Entry:
    ep, batch_tokens, layer = key
    assert isinstance(ep, int)
    assert isinstance(batch_tokens, int)
    ceiling, reason = proven_ceiling(ep, num_experts=shape.num_experts, top_k=shape.top_k)
    evidence = Evidence(
        method="simulated",
        parameters={},
        raw_bound=None,
        grid=Decimal("0.1"),
        ceiling=ceiling,
        ceiling_reason=reason,
        binds="simulated",
        num_batches=0,
        num_units=0,
        unit="none",
        num_tokens=0,
        observed_max=None,
        median=None,
        p95=None,
        slack=None,
        worst_layers=(),
        floors=(),
        coverage=(),
        warnings=("simulated: no batch was measured",),
        policies=(),
    )
    return Entry(ep=ep, batch_tokens=batch_tokens, layer=layer, allowance=allowance, status="headroom", evidence=evidence)  # type: ignore[arg-type]
