"""Which number to plan with at each EP size, what it rests on, and its weak side, in a line each."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from routing.audit.difference import held_out_of
from routing.audit.facts import EntryFacts, Facts
from routing.audit.words import count, exact, number_of, ratio, size

_THIN_SLACK = Decimal("0.1")  # a step of the usual grid: the next odd batch may pass it


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One EP size of the table, entries of all layers alone."""

    ep: int
    use: str
    rests_on: str
    weak_sides: tuple[str, ...]


def advices(facts: Facts) -> tuple[Advice, ...]:
    """By EP size; nothing for a table of single layers."""
    found: dict[int, list[EntryFacts]] = {}
    for one in facts.entries:
        if one.entry.layer == "all":
            found.setdefault(one.entry.ep, []).append(one)
    return tuple(_advice(ep, entries) for ep, entries in sorted(found.items()))


def _advice(ep: int, entries: list[EntryFacts]) -> Advice:
    entries = sorted(entries, key=lambda one: -one.entry.batch_tokens)
    first, *smaller = entries
    use = [f"{exact(first.entry.allowance)} for batches of {size(first.entry.batch_tokens)} tokens or more"]
    use += [f"{exact(one.entry.allowance)} from {size(one.entry.batch_tokens)}" for one in smaller]
    weak = [text for one in entries for text in _weak_sides(one)]
    return Advice(ep=ep, use=", ".join(use), rests_on="; ".join(map(_rests_on, entries)), weak_sides=tuple(dict.fromkeys(weak)))


def _rests_on(one: EntryFacts) -> str:
    evidence, at = one.entry.evidence, size(one.entry.batch_tokens)
    most = evidence.observed_max
    seen = "no worst is stated" if most is None else f"worst {ratio(most.imbalance, 2)}"
    if one.entry.status == "published":
        return f"{at}: published figures, {seen}"
    if one.entry.status in ("implied", "proven"):
        return f"{at}: {one.entry.status}, no batch at this EP size"
    policies = number_of(len(evidence.policies), "policy", "policies")
    return f"{at}: {seen} of {number_of(evidence.num_batches, 'batch', 'batches')} of {policies}"


def _weak_sides(one: EntryFacts) -> Iterator[str]:
    at = size(one.entry.batch_tokens)
    if one.outcome == "exceeded":
        num = sum(len(comparison.above) for comparison in one.comparisons)
        yield f"passed at {at} by {number_of(num, 'batch', 'batches')} of these runs"
    if one.entry.status == "published":
        yield "others' figures, not measured here"
        if one.entry.evidence.binds == "floor" and one.entry.evidence.floors:
            most = max(one.entry.evidence.floors, key=lambda floor: floor.value)
            yield f"decided by {exact(most.value)} alone: {most.source}"
    held_out = held_out_of(one.entry)
    if held_out is not None and held_out[0]:
        yield f"{count(held_out[0])} of {count(held_out[1])} held-out batches of {at} passed what the other half allowed"
    policies = [judged for judged in one.entry.evidence.held_out or () if judged.kind == "policy" and judged.num_above]
    for judged in policies:
        yield f"without {judged.label} in the fit, {judged.num_above} of {judged.num_batches} of its batches of {at} passed"
    codes = {warning.partition(":")[0] for warning in one.entry.evidence.warnings}
    if "low_evidence" in codes and one.entry.status != "published":
        yield f"few batches or units at {at}"
    if "one_policy" in codes and one.entry.status != "published":
        yield "one policy alone"
    if one.slack is not None and 0 <= one.slack < _THIN_SLACK and one.outcome == "holds":
        yield f"{ratio(one.slack, 2)} of slack left at {at}"
