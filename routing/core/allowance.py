"""The words of an allowance table, and the decimal arithmetic that its numbers rest on.

An allowance is the imbalance that a training run must have memory for: busiest rank over even share, rounded up.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from routing.core.judgement import HeldOut, Level
from routing.core.observed import ExpertLoad
from routing.core.placement import valid_ep_sizes
from routing.core.shapes import ModelShape

TABLE_SCHEMA_VERSION = 2
ALLOWANCE_GRID = Decimal("0.1")
CEILING_GRID = Decimal("0.01")

# What an entry rests on: counts (`fitted`, `headroom`), maxima that others reported (`published`), another EP size
# (`implied`), distinct experts alone (`proven`). The method is in the evidence: a published entry is `headroom-v1` too.
Status = Literal["fitted", "headroom", "published", "implied", "proven"]
Layer = int | Literal["all"]
Parameter = int | Decimal | str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEvidence:
    """One policy behind an entry; `observed_max`, `median` and `p95` are null where its run had no full batch.

    Of published figures everything that their authors don't say is null. `method` is what bounded this policy, `seed` what its
    resampling began from.
    """

    run: str | None
    label: str
    name: str
    revision: str | None
    weights_sha256: str | None
    content_hash: str | None
    corpus_hash: str | None
    num_batches: int
    num_tokens: int
    dropped_tokens: int | None
    num_units: int | None
    observed_max: Decimal | None
    median: Decimal | None
    p95: Decimal | None
    method: str | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedMax:
    """The largest imbalance seen: busiest_rows x ep / routed_rows, and where. Indices are 0-based.

    Of a published maximum only the imbalance and the label are known.
    """

    imbalance: Decimal
    busiest_rows: int | None
    routed_rows: int | None
    run: str | None
    label: str
    batch: int | None
    layer: int | None
    rank: int | None
    top_experts: tuple[ExpertLoad, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShare:
    """The share of batches in which `layer` was the worst."""

    layer: int
    share: Decimal


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """A value from outside the measured runs that the allowance may not go below, without headroom."""

    value: Decimal
    source: str
    kind: Literal["measured", "inferred"]
    batch_tokens: int | None
    layer: Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Why an entry has its allowance. Ratios are imbalances, 1.0 is even; counts are over all policies.

    `raw_bound` is before rounding to `grid`, itself rounded up to 1e-6. `slack` is allowance minus observed max.
    `estimate` is the largest level of a run's mix, `stress` that of one stratum; null, with `held_out`, where none was resampled.
    """

    method: str
    parameters: dict[str, Parameter]
    raw_bound: Decimal | None
    grid: Decimal
    ceiling: Decimal
    ceiling_reason: str
    binds: str
    num_batches: int
    num_units: int | None
    unit: str
    num_tokens: int
    observed_max: ObservedMax | None
    median: Decimal | None
    p95: Decimal | None
    slack: Decimal | None
    worst_layers: tuple[LayerShare, ...]
    floors: tuple[Floor, ...]
    coverage: tuple[str, ...]
    warnings: tuple[str, ...]
    policies: tuple[PolicyEvidence, ...]
    estimate: Level | None = None
    stress: Level | None = None
    held_out: tuple[HeldOut, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One allowance, for batches of `batch_tokens` at EP size `ep`, in one decoder layer or in all."""

    ep: int
    batch_tokens: int
    layer: Layer
    allowance: Decimal
    status: Status
    evidence: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class TableModel:
    """The model that a table belongs to: the fields of a ModelShape and their hash under a name."""

    name: str
    shape_hash: str
    aliases: tuple[str, ...]
    num_layers: int
    moe_layers: tuple[int, ...]
    num_experts: int
    top_k: int
    hidden_size: int
    expert_ffn_size: int

    @property
    def shape(self) -> ModelShape:
        """Raises InputError for a geometry that can't be."""
        return ModelShape(**{name: getattr(self, name) for name in ModelShape.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """By what and when a table was made; `generated_at` is UTC, ISO 8601."""

    tool_version: str
    tool_commit: str | None
    generated_at: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """Who answers for entries that were edited by hand, and why."""

    reason: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowanceTable:
    """The whole of an allowances file."""

    schema_version: int
    model: TableModel
    placement: str
    generated: Generated
    entries: tuple[Entry, ...]
    content_hash: str
    override: Override | None = None


def ceil_to(value: Fraction, grid: Decimal) -> Decimal:
    """The smallest multiple of `grid` that is not below `value`; exact, where `ceil(x / 0.1) * 0.1` in floats drifts."""
    return -(-value // Fraction(grid)) * grid


def proven_ceiling(ep: int, *, num_experts: int, top_k: int) -> tuple[Decimal, str]:
    """(min(ep, num_experts / top_k) with the quotient up to 0.01, which of the two and why)."""
    spread = ceil_to(Fraction(num_experts, top_k), CEILING_GRID)
    if spread < ep:
        return spread, f"num_experts / top_k = {num_experts} / {top_k}: a token's experts are distinct"
    return Decimal(ep), f"ep = {ep}: one rank can hold every row, not more"


def entries_hash(model: TableModel, placement: str, entries: tuple[Entry, ...], generated: "Generated") -> str:
    """sha256 over the entries, what they belong to, and by what and when they were made, decimals as written."""
    body = {
        "model": asdict(model),
        "placement": placement,
        "entries": [asdict(entry) for entry in entries],
        "generated": asdict(generated),
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=decimal_text).encode()).hexdigest()


def decimal_text(value: Decimal) -> str:
    """A decimal as the table writes it: never an exponent, always a point."""
    text = format(value, "f")
    return text if "." in text else f"{text}.0"


def entry_faults(entries: tuple[Entry, ...], shape: ModelShape) -> Iterator[tuple[int, str, str]]:
    """(index, field, what is wrong) of every entry that contradicts what needs no statistics, or another entry."""
    places = {(entry.batch_tokens, entry.layer, entry.ep): index for index, entry in enumerate(entries)}
    for index, entry in enumerate(entries):
        fault = _own_fault(entry, shape)
        if fault is not None:
            yield index, *fault
        elif places[entry.batch_tokens, entry.layer, entry.ep] != index:
            where = f"ep={entry.ep} batch_tokens={entry.batch_tokens} layer={entry.layer}"
            yield places[entry.batch_tokens, entry.layer, entry.ep], "ep", f"{where} has an entry already"
        else:
            yield from ((index, "allowance", what) for what in _neighbour_faults(entry, entries, places))


def _own_fault(entry: Entry, shape: ModelShape) -> tuple[str, str] | None:
    if entry.ep not in valid_ep_sizes(shape.num_experts):
        return "ep", f"ep={entry.ep} does not divide {shape.num_experts} experts into more than one rank"
    if entry.batch_tokens < 1:
        return "batch_tokens", f"batch_tokens={entry.batch_tokens} is not positive"
    if entry.layer != "all" and entry.layer not in shape.moe_layers:
        return "layer", f"layer={entry.layer} is no MoE layer of the model"
    ceiling, reason = proven_ceiling(entry.ep, num_experts=shape.num_experts, top_k=shape.top_k)
    if entry.allowance < 1:
        return "allowance", f"allowance {entry.allowance} is below 1, the even share"
    if entry.allowance > ceiling:
        return "allowance", f"allowance {entry.allowance} is above {ceiling}, {reason}"
    return None


def _neighbour_faults(entry: Entry, entries: tuple[Entry, ...], places: Mapping[tuple[int, Layer, int], int]) -> Iterator[str]:
    for (batch_tokens, layer, ep), index in places.items():
        smaller = entries[index]
        if (batch_tokens, layer) == (entry.batch_tokens, entry.layer) and 0 < ep < entry.ep and entry.ep % ep == 0:
            if smaller.allowance > entry.allowance:
                yield f"allowance falls from {smaller.allowance} at ep={ep} to {entry.allowance} at ep={entry.ep}"
        elif (batch_tokens, ep, layer) == (entry.batch_tokens, entry.ep, "all") and entry.allowance > smaller.allowance:
            yield f"allowance {entry.allowance} of layer {entry.layer} is above {smaller.allowance}, that of all layers"
