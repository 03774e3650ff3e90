"""An estimate as text that a person reads."""

from collections.abc import Iterator

from routing.core.units import format_gb
from routing.estimate.ledger import OBSERVED_MARGIN
from routing.estimate.result import Estimate, Term


def explain(estimate: Estimate) -> str:
    """What is alive at the peak by term, the totals, why floor and walk differ, what is omitted, what to be wary of."""
    return "\n".join([*_heading(estimate), *_terms(estimate), *_totals(estimate), *_notes(estimate)])


def _heading(estimate: Estimate) -> Iterator[str]:
    layer = "the LM head" if estimate.binding_layer is None else f"layer {estimate.binding_layer}"
    yield f"alive at the peak, on rank {estimate.binding_rank} while {layer} runs (bytes above the baseline; GB = 1e9 bytes)"
    used = estimate.allowance
    where = f"{used.batch_tokens:,} tokens" if used.batch_tokens is not None else "any batch"
    yield f"allowance {used.value} ({used.status}; ep={used.ep}, {where}, layer {used.layer})"
    if used.seen is not None:
        yield f"the observed share binds, not the allowance: {used.seen} with its margin of {OBSERVED_MARGIN}"
    yield ""


def _terms(estimate: Estimate) -> Iterator[str]:
    width = max(len(term.name) for term in estimate.terms)
    for term in estimate.terms:
        share = f"{100 * term.bytes / estimate.total_bytes:5.1f}%"
        yield f"{term.name:<{width}}  {term.bytes:>15,}  {share}  {_pair(term):<26}  {term.source}"
    yield f"{'total':<{width}}  {estimate.total_bytes:>15,}  {format_gb(estimate.total_bytes)}"
    yield ""


def _pair(term: Term) -> str:
    if term.rows is None or term.bytes_per_row is None:
        return ""
    return f"{term.rows:,} rows x {term.bytes_per_row:,}"


def _totals(estimate: Estimate) -> Iterator[str]:
    rows = [
        ("floor", estimate.floor_bytes),
        ("walk", estimate.walk_bytes),
        ("total without HybridEP", estimate.total_without_hybridep_bytes),
        ("required (1.10)", estimate.required_bytes),
    ]
    for name, num_bytes in rows:
        yield f"{name:<22}  {num_bytes:>15,}  {format_gb(num_bytes)}"
    yield estimate.floor_and_walk
    if estimate.unpaired_bytes != estimate.floor_bytes:
        over = estimate.unpaired_bytes - estimate.floor_bytes
        yield f"adapter gradients are paired with their own rank: unpaired, the floor would be {over:,} bytes larger"
    yield ""


def _notes(estimate: Estimate) -> Iterator[str]:
    yield "in no term:"
    yield from (f"- {line}" for line in estimate.omitted)
    if estimate.outside_bytes:
        yield f"- required holds {estimate.outside_bytes:,} bytes outside PyTorch, as told"
    for caution in estimate.cautions:
        yield f"warning: {caution.code}: {caution.message}"
