"""The named terms of one peak, which add up to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal

from routing.core.layers import DecoderShape
from routing.core.wave import Output, Wave
from routing.estimate.executor import BYTES_PER_ELEMENT
from routing.estimate.hybridep import Buffer, hybridep_buffer
from routing.estimate.ledger import Ledger
from routing.estimate.peaks import Peak
from routing.estimate.rates import COLD_TRANSIENT_BYTES
from routing.estimate.result import Term
from routing.estimate.routed import Ratio, Routing
from routing.estimate.sources import SOURCES

TARGET_LOGPROB_BYTES, TOP_K_ENTRY_BYTES = 4, 12
_EXACT = Context(prec=80)  # the caller's decimal precision is not ours to trust
_Pair = tuple[int | None, int | Decimal | None]
_NO_PAIR: _Pair = (None, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Common:
    """What is the same on every rank; `buffer` is null at EP 1 and where one as large is held."""

    outputs_bytes: int
    cold_bytes: int
    buffer: Buffer | None

    @property
    def hybridep_bytes(self) -> int:
        """A grown buffer is charged at its full new size."""
        return self.buffer.rows * self.buffer.bytes_per_row if self.buffer else 0

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return self.outputs_bytes + self.cold_bytes + self.hybridep_bytes


def common_of(wave: Wave, shape: DecoderShape) -> Common:
    """Outputs, cold transients and the HybridEP buffer of `wave`."""
    has_gradient = any(group.gradient for group in wave.groups)
    is_cold = wave.first_gradient_execution and wave.terms.cold_transients and has_gradient
    buffer = _buffer(wave, shape) if wave.topology.ep > 1 else None
    return Common(
        outputs_bytes=sum(output_bytes(output, shape) for output in wave.outputs),
        cold_bytes=COLD_TRANSIENT_BYTES if is_cold else 0,
        buffer=buffer if buffer is not None and buffer.rows > wave.held_hybridep_rows else None,
    )


def output_bytes(output: Output, shape: DecoderShape) -> int:
    """4 B a target logprob, 12 B a top-k entry, V b a logits row, H b a hidden row."""
    per_row = {
        "target_logprob": TARGET_LOGPROB_BYTES,
        "top_k": TOP_K_ENTRY_BYTES * (output.k or 0),
        "logits": shape.vocab_size * BYTES_PER_ELEMENT,
        "hidden": shape.hidden_size * BYTES_PER_ELEMENT,
    }
    return output.rows * per_row[output.kind]


def terms_of(ledger: Ledger, peak: Peak, common: Common, *, reported_adapters: int) -> tuple[Term, ...]:
    """The terms of one peak; those of no bytes are left out.

    `reported_adapters` is what the adapters add to the total, less than the binding rank's own pending gradients where another
    rank would bind without any.
    """
    found = [
        *_alive(ledger, peak),
        *_stage(ledger, peak),
        ("adapter_gradients", None, reported_adapters, *_NO_PAIR),
        ("adapter_gradients_covered", None, peak.adapter_bytes - reported_adapters, *_NO_PAIR),
        ("cold_transients", None, common.cold_bytes, *_NO_PAIR),
        ("outputs", None, common.outputs_bytes, *_NO_PAIR),
        ("hybridep_buffer", None, common.hybridep_bytes, *(common.buffer or _NO_PAIR)),
    ]
    rank = ledger.ranks[peak.rank]
    return tuple(
        Term(
            name=name,
            rank=rank,
            layer=layer,
            rows=rows,
            bytes_per_row=None if per_row is None else Decimal(per_row),
            bytes=num_bytes,
            source=SOURCES[name],
        )
        for name, layer, num_bytes, rows, per_row in found
        if num_bytes
    )


def routing_at(ledger: Ledger, peak: Peak) -> Routing:
    """The routing that priced the binding stage."""
    routing, layer = ledger.routings[peak.priced.stage.group or 0], peak.priced.layer
    if peak.own_allowance and routing.by_layer is not None and layer is not None:
        return routing.by_layer[layer]
    return routing.flat


def exact_quotient(value: Ratio) -> Decimal:
    """The decimal that a ratio was made of."""
    return _EXACT.divide(Decimal(value[0]), Decimal(value[1]))


def _alive(ledger: Ledger, peak: Peak) -> Iterator[tuple[str, int | None, int, int | None, int | Decimal | None]]:
    yield ("boundaries", None, peak.boundary_bytes, *_boundary_pair(ledger, peak))
    rows = sum(ledger.hidden_rows[group] for group in ledger.gradient_groups)
    single = rows and peak.gradient_bytes % rows == 0
    yield ("incoming_gradient", None, peak.gradient_bytes, *((rows, peak.gradient_bytes // rows) if single else _NO_PAIR))


def _stage(ledger: Ledger, peak: Peak) -> Iterator[tuple[str, int | None, int, int | None, int | Decimal | None]]:
    stage, layer, routed = peak.priced.stage, peak.priced.layer, peak.priced.routed
    for part in stage.parts():
        yield part.name, layer, part.num_bytes, part.rows, part.bytes_per_row
    if routed is not None:
        rows = max(stage.rows, routed.rows)
        yield "shared_expert_return", layer, rows * stage.return_bytes, rows, stage.return_bytes
        pair = _NO_PAIR
        if not routed.stage.fixed_bytes:
            above, below = routing_at(ledger, peak)[0]
            pair = routed.rows, exact_quotient((routed.stage.bytes_per_row * above, below))
        yield ("routed_stage", layer, routed.num_bytes, *pair)


def _boundary_pair(ledger: Ledger, peak: Peak) -> _Pair:
    if len(ledger.gradient_groups) != 1 or not peak.boundary_layers:
        return _NO_PAIR
    rows = ledger.rows[ledger.gradient_groups[0]][peak.rank]
    if rows.attention != rows.gdn and ledger.boundaries.gdn[peak.boundary_layers - 1]:
        return _NO_PAIR
    return rows.attention, ledger.rates.hidden * peak.boundary_layers


def _buffer(wave: Wave, shape: DecoderShape) -> Buffer:
    layouts = (rows for group in wave.groups for rows in (group.attention_rows, group.gdn_rows) if rows is not None)
    return hybridep_buffer(
        shape,
        ep=wave.topology.ep,
        cp=wave.topology.cp,
        etp=wave.topology.etp,
        longest_packed_tokens=max(group.longest_packed_tokens for group in wave.groups),
        busiest_rows=max(map(max, layouts)),
    )
