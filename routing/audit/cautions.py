"""What a reader must know before using a number, and what nothing measured speaks for."""

from collections.abc import Iterator

from routing.audit.claims import RunIdentity, evidence_of, unmeasured
from routing.audit.facts import Facts
from routing.audit.peaks import untested_eps
from routing.audit.reach import uncalibrated
from routing.audit.words import exact, exceeding, listed, number_of, place, places, quoted, size
from routing.core.allowance import Entry
from routing.core.coverage import NUM_TO_COVER, covered_percent
from routing.core.judgement import HeldOut

NUM_NAMED = 3  # held-out parts in one sentence; the page has them all in a table


def cautions(facts: Facts) -> Iterator[str]:
    """Sentences for beside the verdict."""
    yield from _own_runs(facts)
    if imported := [quoted(run.name) for run in facts.runs if run.origin == "recorded"]:
        yield f"{listed(imported)}: recorded by another engine and imported; no forward pass here can vouch for these loads."
    for run in facts.runs:
        if run.num_without_router:
            left_out = number_of(run.num_without_router, "trajectory", "trajectories")
            yield f"{quoted(run.name)}: {left_out} left out (--skip-bad), to which a router gave NaN, Inf or equal logits."
    yield from _marked(facts)
    yield from _few_batches(facts)
    low = {one.entry.batch_tokens for one in facts.entries if "low_evidence" in one.warning_codes}
    told = {one.entry.batch_tokens for one in facts.entries if one.few_batches is not None}
    if thin := sorted(low - told, reverse=True):
        yield f"Evidence is low at {listed(map(size, thin))} tokens, see the warnings in the allowance table."
    if any("one_policy" in one.warning_codes for one in facts.entries):
        yield "The table rests on one policy; another of the same shape, or the same one later in training, may route otherwise."
    yield from _halves(facts)
    yield from _left_out(facts)
    if facts.table.override is not None:
        yield f"Entries were edited by hand. {facts.table.override.name} answers for that: {facts.table.override.reason}"


def _marked(facts: Facts) -> Iterator[str]:
    """Words in the names of policies and files that say what the runs are not; words of the same runs together."""
    words: dict[tuple[str, ...], list[str]] = {}
    for word in dict.fromkeys(word for run in facts.runs for word in run.markings):
        words.setdefault(tuple(run.name for run in facts.runs if word in run.markings), []).append(word)
    if words:
        told = listed(f"{_who(len(names), len(facts.runs))} marked {listed(found)}" for names, found in words.items())
        yield f"Not production numbers: by the names of policy or corpus {told}."


def _who(num: int, num_runs: int) -> str:
    if num == num_runs:
        return {1: "the run is", 2: "both runs are"}.get(num, f"all {num} runs are")
    return "one is" if num == 1 else f"{num} are"


def _few_batches(facts: Facts) -> Iterator[str]:
    """Batch sizes at which the largest imbalance seen says little of the next batches."""
    found: dict[int, int] = {}
    for one in facts.entries:
        if one.few_batches is not None:
            tokens = one.entry.batch_tokens
            found[tokens] = min(one.few_batches, found.get(tokens, one.few_batches))
    for batch_tokens, num_batches in sorted(found.items(), reverse=True):
        untried = "; the rule was not tried at that size" if batch_tokens in uncalibrated(facts) else ""
        yield (
            f"Few batches of {size(batch_tokens)} tokens: {num_batches} a policy, of which the largest covers only "
            f"{covered_percent(num_batches)} of batches at 95% confidence ({NUM_TO_COVER} batches cover 95%){untried}."
        )


def _own_runs(facts: Facts) -> Iterator[str]:
    measured = [one for one in facts.comparisons if one.num_batches]
    own: set[RunIdentity] = {one.identity for one in measured if evidence_of(one) is not None}
    if own and own == {one.identity for one in measured}:
        if any(one.above for one in measured):
            yield "These are the runs that the table was fitted to, and a table as it was fitted holds for its own runs."
        else:
            yield "These are the runs that the table was fitted to: that it fits them is no test on new data."
    elif own:
        labels = listed(sorted(quoted(one.label) for one in own))
        yield f"Of these runs the table was fitted to {labels}, which are no test on new data."


def _halves(facts: Facts) -> Iterator[str]:
    """Where a fit on half of a run's units was exceeded in the other half."""
    failed = _failed(facts, "units")
    if not failed:
        return
    named = [
        f"{exceeding(one.num_above, one.num_batches, f'batches of {quoted(one.label)}')} {exact(one.allowance)} "
        f"at {place(entry)} (the table has {exact(entry.allowance)})"
        for one, entry in failed[:NUM_NAMED]
    ]
    among = ", among others" if len(failed) > NUM_NAMED else ""
    entries = [one.entry for one in facts.entries if one.is_validated is False]
    allowed = list(dict.fromkeys(exact(one.allowance) for one, _ in failed[:NUM_NAMED]))
    verb = "is" if len(allowed) == 1 else "are"
    yield (
        f"Not validated at {places(entries)}: {listed(named)}{among}; {listed(allowed)} {verb} what the run's other half alone "
        "would allow."
    )


def _left_out(facts: Facts) -> Iterator[str]:
    """What a policy does to allowances that were fitted without it: the nearest thing to a policy that nobody measured."""
    failed = _failed(facts, "policy")
    if not failed:
        return
    one, entry = max(failed, key=lambda pair: pair[0].num_above / pair[0].num_batches)
    yield (
        f"Do not use it for a policy that was not measured: fitted without {quoted(one.label)}, {place(entry)} would be "
        f"{exact(one.allowance)}, and {exceeding(one.num_above, one.num_batches, 'of its batches')} that."
    )


def _failed(facts: Facts, kind: str) -> list[tuple[HeldOut, Entry]]:
    return [
        (judged, one.entry)
        for one in facts.entries
        for judged in one.entry.evidence.held_out or ()
        if judged.kind == kind and judged.num_above
    ]


def not_covered(facts: Facts) -> Iterator[str]:
    """What no number here may be taken for."""
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
    yield "Tokens of another kind than those measured: another task, language, prompt, or a policy further on in training"
    for device in dict.fromkeys(run.device for run in facts.runs if run.device):
        names = listed(quoted(run.name) for run in facts.runs if run.device == device)
        yield f"Other devices and number types than {device}, of {names}: rounded otherwise, a router picks other experts at ties"
    if dirty := [quoted(run.name) for run in facts.runs if run.is_dirty]:
        verb = "was" if len(dirty) == 1 else "were"
        yield f"Exact code: {listed(dirty)} {verb} made from uncommitted changes, which the recorded commit lacks"
    untested = untested_eps([entry.ep for entry in entries], facts.peaks)
    if untested:
        yield f"Memory at EP {listed(untested)}: no measured peak is at hand there, so no estimate was compared with a real step"
