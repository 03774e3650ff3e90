"""A wave, a model's shape and its allowances in; an estimate out.

total    = outputs + boundaries + gradients + largest stage + adapter extra + cold transients + HybridEP growth
required = floor(1.10 x estimate without HybridEP) + floor(1.10 x HybridEP growth) + what the caller knows is outside
"""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.core.layers import DecoderShape
from routing.core.observed import Caution
from routing.core.wave import Wave
from routing.estimate.ledger import OBSERVED_MARGIN, Ledger, open_ledger, require_shape
from routing.estimate.lookup import Allowance, AllowanceBook, AllowanceUsed, Mode
from routing.estimate.peaks import Peak, floor_peaks, walk_peak
from routing.estimate.result import Estimate, RankTotal, Term
from routing.estimate.sources import omitted_of, wave_cautions
from routing.estimate.terms import Common, common_of, exact_quotient, routing_at, terms_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceOptions:
    """The caller's choices.

    `per_layer` makes the walk the total where layers have allowances of their own; `lower_by_observed` lets routing that was
    seen lower an allowance; `outside_bytes` is growth outside PyTorch that the caller knows of.
    """

    per_layer: bool = False
    mode: Mode = "fitted"
    strict: bool = False
    lower_by_observed: bool = False
    outside_bytes: int = 0


def price(wave: Wave, shape: DecoderShape, book: AllowanceBook, options: PriceOptions) -> Estimate:
    """The bytes of `wave`. InputError for an EP without allowance, FieldError where the wave isn't of this model."""
    ledger, found = _opened(wave, shape, book, options)
    common = common_of(wave, shape)
    peaks = floor_peaks(ledger)
    floor, walk = max(peaks, key=lambda one: one.num_bytes), walk_peak(ledger)
    by_layer = any(routing.by_layer is not None for routing in ledger.routings)
    peak = walk if options.per_layer and by_layer else floor
    cautions = _cautions(ledger, found, peak, options, by_layer=by_layer)
    total = common.num_bytes + peak.num_bytes
    added = floor.num_bytes - max(one.without_adapters for one in peaks)
    return Estimate(
        total_bytes=total,
        floor_bytes=common.num_bytes + floor.num_bytes,
        walk_bytes=common.num_bytes + walk.num_bytes,
        required_bytes=_required(total, common, wave.topology.cp) + options.outside_bytes,
        total_without_hybridep_bytes=total - common.hybridep_bytes,
        hybridep_bytes=common.hybridep_bytes,
        outside_bytes=options.outside_bytes,
        binding_rank=ledger.ranks[peak.rank],
        binding_layer=peak.priced.layer,
        terms=terms_of(ledger, peak, common, reported_adapters=added if peak is floor else peak.adapter_bytes),
        allowance=_used(ledger, found, peak, cautions),
        ranks=tuple(_rank_total(ledger, common, one) for one in peaks),
        floor_and_walk=_difference(floor, walk),
        omitted=omitted_of(shape),
        cautions=(*cautions, *wave_cautions(wave, shape, ledger.rates)),
    )


def terms_by_rank(
    wave: Wave, shape: DecoderShape, book: AllowanceBook, options: PriceOptions
) -> tuple[tuple[Term, ...], ...]:
    """What is alive at each priced rank's own peak, by the floor; each rank's terms add up to its total."""
    ledger, _ = _opened(wave, shape, book, options)
    common = common_of(wave, shape)
    return tuple(terms_of(ledger, peak, common, reported_adapters=peak.adapter_bytes) for peak in floor_peaks(ledger))


def _opened(
    wave: Wave, shape: DecoderShape, book: AllowanceBook, options: PriceOptions
) -> tuple[Ledger, list[Allowance]]:
    require_shape(wave, shape)
    found = [
        book.find(ep=wave.topology.ep, rows=sum(group.attention_rows), mode=options.mode, strict=options.strict)
        for group in wave.groups
    ]
    return open_ledger(wave, shape, found, lower=options.lower_by_observed), found


def _required(total: int, common: Common, cp: int) -> int:
    """1.10 of the two parts, each rounded down; outputs count twice at CP > 1."""
    doubled = common.outputs_bytes if cp > 1 else 0
    return with_margin(total - common.hybridep_bytes + doubled) + with_margin(common.hybridep_bytes)


def with_margin(num_bytes: int) -> int:
    """The published planner's safety factor, 1.10, rounded down (pricing.md: what a caller must have free)."""
    return num_bytes * 11 // 10


def _rank_total(ledger: Ledger, common: Common, peak: Peak) -> RankTotal:
    return RankTotal(
        rank=ledger.ranks[peak.rank],
        without_adapters_bytes=common.num_bytes + peak.without_adapters,
        adapter_extra_bytes=peak.adapter_bytes,
    )


def _used(ledger: Ledger, found: Sequence[Allowance], peak: Peak, cautions: Sequence[Caution]) -> AllowanceUsed:
    allowance = found[peak.priced.stage.group or 0]
    value, seen = routing_at(ledger, peak)
    layer = peak.priced.layer if peak.own_allowance else None
    has_own = layer is not None and allowance.own_layers is not None and layer in allowance.own_layers
    return AllowanceUsed(
        ep=allowance.ep,
        batch_tokens=allowance.batch_tokens,
        value=exact_quotient(value),
        layer=layer if has_own and layer is not None else "all",
        status=allowance.own_layers[layer][1] if has_own and allowance.own_layers and layer is not None else allowance.status,
        warnings=tuple(dict.fromkeys(caution.code for caution in cautions)),
        seen=None if seen is None else exact_quotient(seen),
    )


def _cautions(
    ledger: Ledger, found: Sequence[Allowance], peak: Peak, options: PriceOptions, *, by_layer: bool
) -> tuple[Caution, ...]:
    """What to know of the allowances."""
    cautions = list(dict.fromkeys(caution for one in found for caution in one.cautions))
    observed = ledger.wave.observed
    if options.lower_by_observed and observed is not None and ledger.wave.topology.ep > 1:
        value = exact_quotient(routing_at(ledger, peak)[0])
        text = f"allowances of at most what was observed + {OBSERVED_MARGIN} (worst {observed.worst}); the binding one is {value}"
        cautions.append(Caution(code="lowered_by_observed", message=text))
    if options.per_layer and not by_layer:
        text = "no layer has an allowance of its own here: the total is the floor"
        cautions.append(Caution(code="no_layer_allowances", message=text))
    return tuple(cautions)


def _difference(floor: Peak, walk: Peak) -> str:
    less = floor.num_bytes - walk.num_bytes
    if not less:
        return "floor and walk are equal: the largest stage runs while every boundary is alive"
    reasons = []
    if walk.own_allowance:
        reasons.append(f"layer {walk.priced.layer} is priced at its own allowance")
    if walk.priced.stage is not floor.priced.stage:
        reasons.append(f"the floor takes the larger stage of layer {floor.priced.layer}'s kind")
    if walk.boundary_layers < floor.boundary_layers:
        reasons.append(
            f"{floor.boundary_layers - walk.boundary_layers} boundaries are released when layer {walk.priced.layer} runs"
        )
    if walk.boundary_layers == floor.boundary_layers and not reasons:
        reasons.append("pending adapter gradients stand beside fewer boundaries")
    return f"the walk is {less:,} bytes below the floor: {'; '.join(reasons)}"
