"""What a reader must know before using a number, and what nothing measured speaks for."""

from collections.abc import Iterator

from routing.audit.claims import RunIdentity, evidence_of, unmeasured
from routing.audit.facts import Facts
from routing.audit.peaks import untested_eps
from routing.audit.words import exact, exceeding, listed, number_of, place, places, quoted, size
from routing.core.allowance import Entry
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
    if marked := [run for run in facts.runs if run.markings]:
        words = dict.fromkeys(word for run in marked for word in run.markings)
        names = listed(quoted(run.name) for run in marked)
        yield f"Not production numbers: the names of policy or corpus of {names} say {listed(words)}."
    thin = sorted({one.entry.batch_tokens for one in facts.entries if "low_evidence" in one.warning_codes}, reverse=True)
    if thin:
        yield f"Evidence is low at {listed(map(size, thin))} tokens, see the warnings in the allowance table."
    if any("one_policy" in one.warning_codes for one in facts.entries):
        yield "The table rests on one policy; another of the same shape, or the same one later in training, may route otherwise."
    yield from _halves(facts)
    yield from _left_out(facts)
    if facts.table.override is not None:
        yield f"Entries were edited by hand. {facts.table.override.name} answers for that: {facts.table.override.reason}"


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
        f"{exceeding(one.num_above, one.num_batches, f'batches of {quoted(one.label)}')} {exact(one.allowance)} at {place(entry)}"
        for one, entry in failed[:NUM_NAMED]
    ]
    among = ", among others" if len(failed) > NUM_NAMED else ""
    entries = [one.entry for one in facts.entries if one.is_validated is False]
    yield (
        f"Not validated at {places(entries)}: {listed(named)}{among}, each fitted on the run's other half."
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
        yield f"The program of {listed(dirty)} in full: its checkout had uncommitted changes, which the recorded commit lacks"
    untested = untested_eps([entry.ep for entry in entries], facts.peaks)
    if untested:
        yield f"Memory at EP {listed(untested)}: no measured peak is at hand there, so no estimate was compared with a real step"
