"""The verdict in plain words, and what it does not cover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from routing.audit.claims import Comparison, RunIdentity, evidence_fault, evidence_of, unmeasured
from routing.audit.facts import EntryFacts, Facts
from routing.audit.peaks import untested_eps
from routing.audit.words import count, exact, listed, number_of, ratio, size
from routing.core.allowance import Entry

NUM_NEXT_BATCHES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`kind` picks the colour and the word beside the headline; `not_covered` is what nothing here speaks for."""

    kind: Literal["holds", "fails", "open"]
    headline: str
    sentences: tuple[str, ...]
    not_covered: tuple[str, ...]


def judge(facts: Facts) -> Verdict:
    """Fails where a batch is above its allowance, an estimate under its measured peak, or evidence not what its run shows.

    Open where nothing was compared.
    """
    faults = [fault for one in facts.comparisons if (fault := evidence_fault(one)) is not None]
    under = [one for one in facts.peaks if one.is_under]
    passed = [one for one in facts.entries if one.outcome == "exceeded"]
    compared = [one for one in facts.entries if one.outcome in ("exceeded", "holds")]
    kind: Literal["holds", "fails", "open"] = "fails" if passed or under or faults else "holds" if compared else "open"
    failures = []
    if passed:
        verb = "does" if len(passed) == 1 else "do"
        failures.append(f"{len(passed)} of {number_of(len(facts.entries), 'allowance')} {verb} not hold.")
    if under:
        failures.append(f"{len(under)} of {number_of(len(facts.peaks), 'estimate is', 'estimates are')} under the measured peak.")
    if faults and not failures:
        failures.append("The table's evidence is not what its own runs show.")
    sentences = [*_measured(compared), *_peaks(facts), *(f"Evidence: {fault}." for fault in faults), *_cautions(facts)]
    return Verdict(
        kind=kind,
        headline=" ".join(failures) or _headline(facts, len(compared)),
        sentences=tuple(sentences),
        not_covered=tuple(_not_covered(facts)),
    )


def _headline(facts: Facts, num_compared: int) -> str:
    """Where nothing fails."""
    if not facts.runs:
        return "No measured run was given: this page shows what the table says of itself, and tests nothing of it."
    if not num_compared:
        return "These runs say nothing about this table: no full batch at any of its batch sizes."
    if num_compared < len(facts.entries):
        rest = len(facts.entries) - num_compared
        return f"{num_compared} of {number_of(len(facts.entries), 'allowance')} could be compared, and hold; {rest} could not."
    if _only_its_own(facts):
        return "Every allowance holds in every batch of the runs that it was fitted to."
    return "Every allowance holds in every measured batch."


def _peaks(facts: Facts) -> Iterator[str]:
    """How the estimates stand against measured peaks; like with like is without the buffer, which PyTorch can't show."""
    for one in facts.peaks:
        yield (
            f"The memory estimate of {one.peak.wave} is {_over(one.over_fraction)} its measured peak, "
            f"{_over(one.over_fraction_without_hybridep)} it without the HybridEP buffer, which that peak can't show "
            f"({one.peak.state}; {one.peak.source})."
        )


def _over(fraction: float) -> str:
    return f"{abs(fraction):.1%} {'under' if fraction < 0 else 'over'}"


def limits(facts: Facts) -> tuple[str, ...]:
    """What the evidence supports: chances and shares from the number of batches, and what alone is proven."""
    entries = [one.entry for one in facts.entries]
    coverage = (line for entry in entries for line in entry.evidence.coverage if not _is_told_elsewhere(line))
    found = list(dict.fromkeys(coverage))
    for batch_tokens in dict.fromkeys(entry.batch_tokens for entry in entries):
        policies = (one for entry in entries if entry.batch_tokens == batch_tokens for one in entry.evidence.policies)
        batches = [one.num_batches for one in policies if one.num_batches]
        if batches:
            fewest = min(batches)
            seen = f"{size(batch_tokens)} tokens of a policy with {number_of(fewest, 'measured batch', 'measured batches')}"
            chance = f"{NUM_NEXT_BATCHES / (fewest + NUM_NEXT_BATCHES):.1%}"
            next_ones = f"Over the next {count(NUM_NEXT_BATCHES)} batches of {seen}"
            found.append(f"{next_ones}, the chance that at least one passes the largest seen is {chance}.")
    found.append(
        "These chances are of passing the largest imbalance seen, not the allowance, which lies above it by its slack; they "
        "suppose that the next batches come as the measured ones did."
    )
    found.append("To cover 95% of batches at 95% confidence takes 59 batches, to cover 99% takes 299.")
    ceilings = {entry.ep: entry.evidence.ceiling for entry in entries}
    proven = listed(f"{exact(value)} at EP {ep}" for ep, value in sorted(ceilings.items()))
    found.append(f"Only min(EP, E/k) is proven, E experts and k of them a token: {proven}. No sample proves that less is enough.")
    if not any(entry.evidence.held_out for entry in entries):
        found.append("The table holds no held-out test: no fit on half of the units was tried on the other half.")
    return tuple(found)


def _is_told_elsewhere(line: str) -> bool:
    """The ceiling has a sentence for all EP sizes, and held-out results a table."""
    return line.startswith("Only min(") or ", held out " in line


def _measured(compared: Sequence[EntryFacts]) -> Iterator[str]:
    """What was compared with what, and the entry that has least left."""
    if not compared:
        return
    entries = [one.entry for one in compared]
    seen = {(one.identity, one.entry.batch_tokens): one.num_batches for facts in compared for one in facts.comparisons}
    policies = len({identity for (identity, _), batches in seen.items() if batches})
    eps, sizes = sorted({entry.ep for entry in entries}), sorted({entry.batch_tokens for entry in entries}, reverse=True)
    batches, verb = number_of(sum(seen.values()), "full batch", "full batches"), "was" if len(entries) == 1 else "were"
    yield (
        f"{number_of(len(entries), 'allowance')} (EP {listed(eps)}; batches of {listed(map(size, sizes))} tokens) "
        f"{verb} compared with {batches} of {number_of(policies, 'measured run')}."
    )
    pairs = [one for facts in compared for one in facts.comparisons if one.worst is not None]
    closest = max(pairs, key=lambda one: one.worst.imbalance(one.entry.ep) / Fraction(one.entry.allowance) if one.worst else 0)
    if closest.worst is not None:
        word = "The furthest above" if closest.above else "The closest"
        yield (
            f"{word}: {_place(closest.entry)}, {ratio(closest.worst.decimal(closest.entry.ep))} seen against "
            f"{exact(closest.entry.allowance)} allowed (policy '{closest.identity.label}', layer {closest.worst.layer}, "
            f"batch {closest.worst.batch}, rank {closest.worst.rank})."
        )


def _cautions(facts: Facts) -> Iterator[str]:
    """What a reader must know before using a number that holds."""
    measured = [one for one in facts.comparisons if one.num_batches]
    own = _its_own(facts)
    if _only_its_own(facts):
        if any(one.above for one in measured):
            yield "These are the runs that the table was fitted to, and a table as it was fitted holds for its own runs."
        else:
            yield "These are the runs that the table was fitted to: that it holds for them is no test on new data."
    elif own:
        yield f"Of these runs the table was fitted to {listed(sorted(one.label for one in own))}, which are no test on new data."
    if imported := [run.name for run in facts.runs if run.origin == "recorded"]:
        yield f"{listed(imported)}: recorded by another engine and imported; no forward pass here can vouch for these loads."
    for run in facts.runs:
        if run.num_without_router:
            left_out = number_of(run.num_without_router, "trajectory", "trajectories")
            yield f"{run.name}: {left_out} left out, to which a router of the policy gave NaN, Inf or equal logits (--skip-bad)."
    for words in dict.fromkeys(run.markings for run in facts.runs if run.markings):
        names = [run.name for run in facts.runs if run.markings == words]
        yield f"{listed(names)}: the names of policy or corpus say {listed(words)}; these are no production numbers."
    thin = sorted({one.entry.batch_tokens for one in facts.entries if _has(one.entry, "low_evidence")}, reverse=True)
    if thin:
        yield f"Evidence is low at {listed(map(size, thin))} tokens, see the warnings in the allowance table."
    if any(_has(one.entry, "one_policy") for one in facts.entries):
        yield "The table rests on one policy; another of the same shape, or the same one later in training, may route otherwise."
    failed = sorted({one.entry.batch_tokens for one in facts.entries if _has(one.entry, "not_validated")}, reverse=True)
    if failed:
        yield f"Not validated at {listed(map(size, failed))} tokens: held-out batches pass what the other half of a run allows."
    yield from _left_out(facts)
    if facts.table.override is not None:
        yield f"Entries were edited by hand. {facts.table.override.name} answers for that: {facts.table.override.reason}"


def _left_out(facts: Facts) -> Iterator[str]:
    """What a policy does to allowances that were fitted without it: the nearest thing to a policy that nobody measured."""
    found = [
        (judged, one.entry)
        for one in facts.entries
        for judged in one.entry.evidence.held_out or ()
        if judged.kind == "policy" and judged.num_above
    ]
    if not found:
        return
    judged, entry = max(found, key=lambda pair: pair[0].num_above / pair[0].num_batches)
    above = f"{count(judged.num_above)} of its {number_of(judged.num_batches, 'batch', 'batches')}"
    yield (
        f"Do not take it for a policy that was not measured: fitted without {judged.label}, {_place(entry)} would be "
        f"{exact(judged.allowance)}, and {above} pass that."
    )


def _only_its_own(facts: Facts) -> bool:
    """Whether every run that was compared is one that the table was fitted to."""
    own = _its_own(facts)
    return bool(own) and own == {one.identity for one in facts.comparisons if one.num_batches}


def _its_own(facts: Facts) -> set[RunIdentity]:
    """The runs that were compared and that the table was fitted to; entries of single layers name no policies."""
    return {one.identity for one in facts.comparisons if one.num_batches and evidence_of(one) is not None}


def _not_covered(facts: Facts) -> Iterator[str]:
    yield from unmeasured(facts.comparisons)
    single = dict.fromkeys((one.identity.run, one.entry.batch_tokens) for one in facts.comparisons if one.num_batches == 1)
    for run, batch_tokens in single:
        yield f"{run}: one full batch of {size(batch_tokens)} tokens, nothing says how the next would differ"
    entries = [one.entry for one in facts.entries]
    yield f"EP sizes other than {listed(sorted({entry.ep for entry in entries}))}: the table has no entry, and none is borrowed"
    smallest = min(entry.batch_tokens for entry in entries)
    yield f"Batches below {size(smallest)} tokens, which are less even; the entry of {size(smallest)} does not speak for them"
    if all(entry.layer == "all" for entry in entries):
        yield "Single layers: every entry is for the worst of all layers"
    model = facts.table.model
    yield f"Models other than {listed((model.name, *model.aliases))}, and expert placements other than {facts.table.placement}"
    untested = untested_eps([entry.ep for entry in entries], facts.peaks)
    if untested:
        yield (
            f"Memory at EP {listed(untested)}: no measured peak is at hand there, so no estimate was held against a real step"
        )
    yield "Tokens of another kind than those measured: another task, language, prompt, or a policy further on in training"


def _place(entry: Entry) -> str:
    place = f"EP {entry.ep} at {size(entry.batch_tokens)} tokens"
    return place if entry.layer == "all" else f"{place}, layer {entry.layer}"


def _has(entry: Entry, code: str) -> bool:
    return any(warning.partition(":")[0] == code for warning in entry.evidence.warnings)


def furthest(comparisons: Sequence[Comparison], limit: int) -> tuple[tuple[Comparison, int], ...]:
    """Every batch above its allowance as (comparison, place in its `above`), the furthest first, at most `limit`."""
    found = [(one, place) for one in comparisons for place in range(len(one.above))]
    found.sort(
        key=lambda pair: -float(pair[0].above[pair[1]].worst.imbalance(pair[0].entry.ep) / Fraction(pair[0].entry.allowance))
    )
    return tuple(found[:limit])
