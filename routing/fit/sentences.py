"""What an entry says in words: how far its counts reach, what was held out, and what a reader must know."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from routing.core.coverage import IS_PROVEN, MORE_UNITS, NEEDED_BATCHES, NEXT_BATCH, ONLY_PROVEN, covered_percent
from routing.core.judgement import HeldOut
from routing.core.observed import MeasuredRun
from routing.fit.cell import Cell
from routing.fit.judge import held_out_sentence
from routing.fit.strat_boot import MIN_BATCHES, MIN_UNITS, Resampled


def cell_warnings(cell: Cell) -> tuple[str, ...]:
    """What a reader of the entry must know, each `code: sentence`."""
    counted = [worsts for worsts in cell.observed if worsts.worsts]
    num_batches = min(len(worsts.worsts) for worsts in counted)
    num_units = min(len(worsts.units) for worsts in counted)
    warnings = []
    is_thin = any(worsts.worsts and levels is None for worsts, levels in zip(cell.observed, cell.resampled, strict=True))
    if num_batches < MIN_BATCHES or num_units < MIN_UNITS:
        few = f"the least measured policy has {num_batches} batches and {num_units} units"
        warnings.append(f"low_evidence: {few}, below {MIN_BATCHES} or {MIN_UNITS}")
    elif is_thin:
        warnings.append(f"low_evidence: not every policy was resampled, fewer than {MIN_UNITS} units have tokens of their own")
    if len({run.weights_sha256 for run in cell.runs}) == 1:
        warnings.append("one_policy: another policy of the same shape may route otherwise")
    for run, worsts in zip(cell.runs, cell.observed, strict=True):
        if len(worsts.worsts) < 2:
            warnings.append(f"few_batches: {run.run} has {len(worsts.worsts)} full batches of {cell.batch_tokens} tokens")
    _, needed = NEEDED_BATCHES[-1]
    for run, levels in cell.levels():
        if levels.repeated.share == 1 and levels.num_trajectories < needed:
            few = f"{levels.num_trajectories} trajectories, any of which may be a batch, below {needed} (99% at 95% confidence)"
            warnings.append(f"low_evidence: {run.run}: {few}")
        if levels.thin_strata:
            few = f"below {MIN_UNITS} units or {cell.batch_tokens} tokens"
            warnings.append(f"thin_strata: {run.run}: not resampled by themselves, {few}: {', '.join(levels.thin_strata)}")
        elif not levels.strata:
            warnings.append(f"one_stratum: {run.run}: one source of batches, no other was stressed")
    return tuple(warnings)


def held_out_warnings(held_out: Sequence[HeldOut], cell: Cell) -> Iterator[str]:
    """A run whose held-out half is above its own allowance is never called validated."""
    for run in cell.runs:
        passed = [one for one in _halves(held_out, run) if one.num_above]
        if passed:
            above, of = sum(one.num_above for one in passed), sum(one.num_batches for one in passed)
            yield f"not_validated: {run.run}: {above} of {of} held-out batches are above what the other half of its units allows"


def _halves(held_out: Sequence[HeldOut], run: MeasuredRun) -> list[HeldOut]:
    return [one for one in held_out if (one.run, one.kind) == (run.run, "units")]


def validated_sentences(held_out: Sequence[HeldOut], cell: Cell) -> Iterator[str]:
    """Said of a run only where no held-out batch of either half of its units is above, by the rule of the entry."""
    for run in cell.runs:
        halves = _halves(held_out, run)
        if halves and all(one.num_batches and not one.num_above for one in halves):
            others = sorted({one.method for one in halves} - {cell.method})
            if others:
                by = f"the halves were fitted by {', '.join(others)}, with too little for {cell.method}"
                yield f"{run.label}: no batch of either half of its units is above what the other allows, but {by}."
            else:
                yield f"{run.label}: validated on either half of its units against the other; that is no proof."


def repeated_sentence(label: str, levels: Resampled, ep: int) -> str:
    """How uneven repeated text is taken to be, and how much of a batch."""
    text = levels.repeated
    return (
        f"{label}: a loop's text is taken to show {float(levels.repeated_text(ep)):.4f} at EP {ep}, "
        f"from the text that all but {float(text.beyond_share):.2%} of tokens stand in, in {float(text.share):.0%} of a batch."
    )


def more_units_sentence(label: str, num_batches: int, num_units: int) -> str:
    """How many more units would cover 95% and 99% of batches at 95% confidence, at as many batches a unit."""
    lacking = [
        f"{max(0, -(-(needed - num_batches) * num_units // num_batches))} more for {share}" for share, needed in NEEDED_BATCHES
    ]
    return f"{label}{MORE_UNITS}at 95% confidence: {', '.join(lacking)} of batches."


def cell_coverage(cell: Cell, ceiling: Decimal, held_out: Sequence[HeldOut] = ()) -> tuple[str, ...]:
    """The honest sentences of an entry, its ceiling last."""
    counted = [(run, worsts) for run, worsts in zip(cell.runs, cell.observed, strict=True) if worsts.worsts]
    sentences = [
        coverage_sentence(run.label, len(worsts.worsts), cell.batch_tokens, len(worsts.units)) for run, worsts in counted
    ]
    if cell.is_resampled:
        sentences += [repeated_sentence(run.label, levels, cell.ep) for run, levels in cell.levels()]
        sentences += [more_units_sentence(run.label, len(worsts.worsts), len(worsts.units)) for run, worsts in counted]
    sentences += [held_out_sentence(one, ep=cell.ep, batch_tokens=cell.batch_tokens) for one in held_out]
    return (*sentences, *validated_sentences(held_out, cell), ceiling_sentence(ceiling))


def coverage_sentence(label: str, num_batches: int, batch_tokens: int, num_units: int | None) -> str:
    """What `num_batches` of one policy say of the next; units where they are known."""
    units = "" if num_units is None else f", {num_units} units"
    return (
        f"{label}: {num_batches} batches of {batch_tokens} tokens{units}"
        f"{NEXT_BATCH}passes its observed max = 1/{num_batches + 1}; "
        f"share of batches covered at 95% confidence: {covered_percent(num_batches)}."
    )


def ceiling_sentence(ceiling: Decimal) -> str:
    """The last sentence of every entry with a measured or published bound."""
    return f"{ONLY_PROVEN}{ceiling}{IS_PROVEN}"
