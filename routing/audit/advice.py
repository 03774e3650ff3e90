"""What each allowance rests on, and the weak sides of an EP size, each in a few words."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from routing.audit.entries import EntryFacts
from routing.audit.facts import Facts
from routing.audit.words import beside, exact, exceeding, listed, number_of, quoted, ratio, size
from routing.core.coverage import NUM_TO_COVER
from routing.core.judgement import HeldOut

_THIN_SLACK = Decimal("0.1")  # a step of the usual grid: the next odd batch may exceed it


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One EP size of the table, its entries of all layers, the largest batch size first."""

    ep: int
    entries: tuple[EntryFacts, ...]
    weak_sides: tuple[str, ...]


def advices(facts: Facts) -> tuple[Advice, ...]:
    """By EP size; nothing for a table of single layers."""
    found: dict[int, list[EntryFacts]] = {}
    for one in sorted(facts.entries, key=lambda one: -one.entry.batch_tokens):
        if one.entry.layer == "all":
            found.setdefault(one.entry.ep, []).append(one)
    return tuple(
        Advice(ep=ep, entries=tuple(entries), weak_sides=tuple(dict.fromkeys(_weak_sides(entries))))
        for ep, entries in sorted(found.items())
    )


def rests_on(one: EntryFacts) -> str:
    """The largest imbalance that the entry was made from, and in how many batches."""
    evidence = one.entry.evidence
    most = evidence.observed_max
    seen = "no worst is stated" if most is None else f"worst seen: {beside(most.imbalance, one.entry.allowance)}"
    if one.entry.status == "published":
        return f"published, {seen}"
    if one.entry.status in ("implied", "proven"):
        return f"{one.entry.status}, no batch"
    return f"{seen}, in {number_of(evidence.num_batches, 'batch', 'batches')}"


def stands(one: EntryFacts) -> str:
    """What these runs and the fit's own tests say of it."""
    if one.outcome != "holds":
        return {"exceeded": "does not hold", "proven": "proven ceiling", "unmeasured": "not measured here"}[one.outcome]
    found = ["fits its own data" if one.is_its_own else "holds here"]
    if one.is_validated is False:
        return "; ".join([*found, "failed held-out"])
    if one.is_validated:
        found.append("held-out halves hold" + (f" (fitted by {listed(one.halves_by)})" if one.halves_by else ""))
    elif one.is_its_own:
        found.append("no held-out test")
    if one.failed_parts:
        found.append(f"a held-out {listed(one.failed_parts)} failed")
    if one.few_batches is not None:
        found.append(f"only {number_of(one.few_batches, 'batch', 'batches')} a policy ({NUM_TO_COVER} cover 95%)")
    return "; ".join(found)


def _weak_sides(entries: list[EntryFacts]) -> Iterator[str]:
    for one in entries:
        for text in _of_entry(one):
            yield f"{size(one.entry.batch_tokens)} tokens: {text}"
    words = {"low_evidence": "few batches or units", "one_policy": "one policy alone"}
    for code, text in words.items():
        sizes = [size(one.entry.batch_tokens) for one in entries if code in one.warning_codes and one.entry.status != "published"]
        if sizes:
            yield f"{listed(sizes)} tokens: {text}"


def _of_entry(one: EntryFacts) -> Iterator[str]:
    if one.outcome == "exceeded":
        num = sum(len(comparison.above) for comparison in one.comparisons)
        yield f"exceeded by {number_of(num, 'batch', 'batches')} of these runs"
    if one.entry.status == "published":
        yield "others' figures, not measured here"
        if one.entry.evidence.binds == "floor" and one.entry.evidence.floors:
            most = max(one.entry.evidence.floors, key=lambda floor: floor.value)
            yield f"decided by {exact(most.value)} alone: {most.source}"
    for judged in one.entry.evidence.held_out or ():
        if judged.num_above:
            yield _failed(judged)
    if one.slack is not None and 0 <= one.slack < _THIN_SLACK and one.outcome == "holds":
        slack = ratio(one.slack, 2)
        if one.entry.evidence.binds == "observed":
            yield f"this is the largest seen, rounded up: no margin beyond rounding ({slack})"
        else:
            yield f"{slack} of slack left"


def _failed(judged: HeldOut) -> str:
    """A part that a fit had not seen, and how many of its batches exceed what that fit allows."""
    batches = f"batches of {quoted(judged.label)}"
    if judged.kind == "policy":
        said = exceeding(judged.num_above, judged.num_batches, "of its batches")
        return f"fitted without {quoted(judged.label)}, {said} {exact(judged.allowance)}"
    if judged.kind == "stratum":
        said = exceeding(judged.num_above, judged.num_batches, f"of its {batches}")
        return f"fitted without the source {judged.part.removeprefix('stratum ')}, {said} {exact(judged.allowance)}"
    said = exceeding(judged.num_above, judged.num_batches, f"{batches} in the other half")
    return f"fitted on half of the units, {said} {exact(judged.allowance)}"
