"""Which number to plan with at each EP size, what it rests on, and its weak side, in a line each."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from routing.audit.difference import held_out_of
from routing.audit.facts import EntryFacts, Facts
from routing.audit.words import count, exact, listed, number_of, ratio, size

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
    weak = [text for one in entries for text in _weak_sides(one)]
    weak += _of_warnings(entries)
    return Advice(
        ep=ep,
        use=", ".join(_numbers(entries)),
        rests_on="; ".join(map(_rests_on, entries)),
        weak_sides=tuple(dict.fromkeys(weak)),
    )


def _numbers(entries: list[EntryFacts]) -> Iterator[str]:
    """Each allowance with the smallest batch size that it stands at, as long as neighbours are equal."""
    for place, one in enumerate(entries):
        following = entries[place + 1].entry.allowance if place + 1 < len(entries) else None
        if following != one.entry.allowance:
            yield f"{exact(one.entry.allowance)} from {size(one.entry.batch_tokens)} tokens a batch"


def _of_warnings(entries: list[EntryFacts]) -> Iterator[str]:
    """What the entries' own warnings say in a few words, each with its batch sizes."""
    words = {"low_evidence": "few batches or units", "one_policy": "one policy alone"}
    for code, text in words.items():
        sizes = [size(one.entry.batch_tokens) for one in entries if code in _codes(one) and one.entry.status != "published"]
        if sizes:
            yield f"{text} at {listed(sizes)}"


def _codes(one: EntryFacts) -> set[str]:
    return {warning.partition(":")[0] for warning in one.entry.evidence.warnings}


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
        yield f"fitted without {judged.label}, {judged.num_above} of its {count(judged.num_batches)} batches of {at} passed"
    if one.slack is not None and 0 <= one.slack < _THIN_SLACK and one.outcome == "holds":
        yield f"{ratio(one.slack, 2)} of slack left at {at}"
