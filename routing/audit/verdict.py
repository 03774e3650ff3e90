"""The verdict in plain words: what holds, on what it rests, what to do with it, and what it does not cover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from routing.audit.cautions import cautions, not_covered
from routing.audit.claims import Comparison, RunIdentity, evidence_fault
from routing.audit.entries import EntryFacts
from routing.audit.facts import Facts
from routing.audit.reach import ceilings
from routing.audit.words import beside, count, exact, listed, number_of, place, places, quoted, size

Kind = Literal["holds", "fails", "open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`kind` picks the colour and the word beside the headline; `action` is what to do with the numbers.

    `not_covered` is what nothing here speaks for.
    """

    kind: Kind
    headline: str
    action: str
    sentences: tuple[str, ...]
    not_covered: tuple[str, ...]


def judge(facts: Facts) -> Verdict:
    """Fails where a batch is above its allowance, an estimate under its measured peak, or evidence not what its run shows.

    Open where nothing was compared, and where what holds failed on held-out batches or was tried on nothing but its own runs.
    """
    faults = [fault for one in facts.comparisons if (fault := evidence_fault(one)) is not None]
    under = [one for one in facts.peaks if one.is_under]
    exceeded = [one for one in facts.entries if one.outcome == "exceeded"]
    compared = [one for one in facts.entries if one.outcome in ("exceeded", "holds")]
    weak = any(one.standing in ("unvalidated", "untested") for one in compared)
    kind: Kind = "fails" if exceeded or under or faults else "holds" if compared and not weak else "open"
    failures = []
    if exceeded:
        verb = "does" if len(exceeded) == 1 else "do"
        failures.append(f"{len(exceeded)} of {number_of(len(facts.entries), 'allowance')} {verb} not hold.")
    if under:
        failures.append(f"{len(under)} of {number_of(len(facts.peaks), 'estimate is', 'estimates are')} under the measured peak.")
    if faults and not failures:
        failures.append("The table's evidence is not what its own runs show.")
    sentences = [*_measured(compared), *_peaks(facts), *(f"Evidence: {fault}." for fault in faults), *cautions(facts)]
    return Verdict(
        kind=kind,
        headline=" ".join(failures) or _headline(facts, compared),
        action=" ".join(
            [
                _use(kind, len(exceeded), len(compared)),
                f"Until then only min(EP, experts / top-k) is safe: {ceilings(facts)}.",
                *_not_to_rely_on(compared),
            ]
        ),
        sentences=tuple(sentences),
        not_covered=tuple(not_covered(facts)),
    )


def _headline(facts: Facts, compared: Sequence[EntryFacts]) -> str:
    """Where nothing fails."""
    if not facts.runs:
        return "No measured run was given: this page shows what the table says of itself, and tests nothing of it."
    if not compared:
        return "These runs say nothing about this table: no full batch at any of its batch sizes."
    unvalidated = [one.entry for one in compared if one.standing == "unvalidated"]
    is_its_own, rest = all(one.is_its_own for one in compared), len(facts.entries) - len(compared)
    doubt = f"not validated at {places(unvalidated)}" if unvalidated else ""
    untested = [one.entry for one in compared if one.standing == "untested"]
    if not doubt and untested:
        doubt = f"no held-out half was tried{'' if len(untested) == len(compared) else f' at {places(untested)}'}"
    if rest:
        held = f"{len(compared)} of {number_of(len(facts.entries), 'allowance')} could be compared, and hold; {rest} could not"
    elif is_its_own:
        held = "Fits the runs it was made from" + ("" if doubt else f", and their held-out halves{_by(compared)}")
    else:
        held = "Every allowance holds in every measured batch"
    return f"{held}; {doubt}." if doubt else f"{held}."


def _by(compared: Sequence[EntryFacts]) -> str:
    """With which rules, where halves had too little for the entry's own."""
    rules = sorted({rule for one in compared for rule in one.halves_by})
    return f" (halves fitted by {listed(rules)}, with too little for the table's rule)" if rules else ""


def _use(kind: Kind, num_exceeded: int, num_compared: int) -> str:
    """What a planner does with numbers of such a verdict."""
    if num_exceeded:
        return "Do not plan with an allowance that was exceeded: fit again with these runs, and review."
    if kind == "fails":
        return "Do not plan with these numbers before the failure above is explained."
    if not num_compared:
        return "Measure your policy on your data and compare the table with that run before you plan with it."
    return "Use these numbers only for the policies and data named here; for yours, measure and refit."


def _not_to_rely_on(compared: Sequence[EntryFacts]) -> Iterator[str]:
    """What failed on held-out halves, a sentence for each batch size: not even for the policies that it was fitted to."""
    failed = [one.entry for one in compared if one.standing == "unvalidated" and one.entry.layer == "all"]
    for batch_tokens in dict.fromkeys(entry.batch_tokens for entry in failed):
        entries = [entry for entry in failed if entry.batch_tokens == batch_tokens]
        allowances = listed(exact(entry.allowance) for entry in entries)
        proven = listed(exact(entry.evidence.ceiling) for entry in entries)
        yield (
            f"At {places(entries)} do not rely on {allowances}, even for these policies: plan for {proven}, or measure more."
        )


def _peaks(facts: Facts) -> Iterator[str]:
    """How the estimates stand against measured peaks; like with like is without the buffer, which PyTorch can't show."""
    for one in facts.peaks:
        yield (
            f"The memory estimate of {quoted(one.peak.wave)} is {_over(one.over_fraction)} its measured peak, "
            f"{_over(one.over_fraction_without_hybridep)} it without the HybridEP buffer, which that peak can't show "
            f"({one.peak.state}; {one.peak.source})."
        )


def _over(fraction: float) -> str:
    return f"{abs(fraction):.1%} {'under' if fraction < 0 else 'over'}"


def _measured(compared: Sequence[EntryFacts]) -> Iterator[str]:
    """What was compared with what, and the entry that has least left."""
    if not compared:
        return
    entries = [one.entry for one in compared]
    seen = {(one.identity, one.entry.batch_tokens): one.num_batches for facts in compared for one in facts.comparisons}
    policies = len({identity for (identity, _), batches in seen.items() if batches})
    eps, verb = sorted({entry.ep for entry in entries}), "was" if len(entries) == 1 else "were"
    batches = listed(_batches_by_size(seen))
    yield (
        f"{number_of(len(entries), 'allowance')} at EP {listed(eps)} {verb} compared with every full batch of "
        f"{number_of(policies, 'measured run')}: {batches}."
    )
    pairs = [one for facts in compared for one in facts.comparisons if one.worst is not None]
    closest = max(pairs, key=lambda one: one.worst.imbalance(one.entry.ep) / Fraction(one.entry.allowance) if one.worst else 0)
    if closest.worst is not None:
        allowance, seen_there = closest.entry.allowance, closest.worst.decimal(closest.entry.ep)
        word = "Furthest above its allowance" if closest.above else "Closest to its allowance"
        is_worst = all(one.worst is None or one.worst.decimal(one.entry.ep) <= seen_there for one in pairs)
        yield (
            f"{word}{', and the worst seen' if is_worst else ''}: {place(closest.entry)}, {beside(seen_there, allowance)} seen "
            f"against {exact(allowance)} allowed ({quoted(closest.identity.label)}, layer {closest.worst.layer}, "
            f"batch {count(closest.worst.batch)}, rank {closest.worst.rank}; layers, batches and ranks count from 0)."
        )


def _batches_by_size(seen: dict[tuple[RunIdentity, int], int]) -> Iterator[str]:
    for batch_tokens in sorted({one for _, one in seen}, reverse=True):
        by_run = sorted(batches for (_, one), batches in seen.items() if one == batch_tokens and batches)
        each = count(by_run[0]) if by_run[:1] == by_run[-1:] else f"{count(by_run[0])} to {count(by_run[-1])}"
        yield f"{count(sum(by_run))} of {size(batch_tokens)} tokens{f' ({each} a run)' if len(by_run) > 1 else ''}"


def furthest(comparisons: Sequence[Comparison], limit: int) -> tuple[tuple[Comparison, int], ...]:
    """Every batch above its allowance as (comparison, place in its `above`), the furthest first, at most `limit`."""
    found = [(one, at) for one in comparisons for at in range(len(one.above))]
    found.sort(
        key=lambda pair: -float(pair[0].above[pair[1]].worst.imbalance(pair[0].entry.ep) / Fraction(pair[0].entry.allowance))
    )
    return tuple(found[:limit])
