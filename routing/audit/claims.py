"""Allowances against measured batches: which hold, which do not, and of which the runs say nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from routing.core.allowance import Entry, Layer, PolicyEvidence, decimal_text
from routing.core.observed import BatchWorst
from routing.core.units import format_size

NOTHING_CHANGED = "nothing was changed, fit again with these runs"
Outcome = Literal["holds", "exceeded", "proven", "unmeasured"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """Which run a number comes from; the two hashes tell whether it is the run that an entry was fitted to."""

    run: str
    label: str
    policy: str
    content_hash: str | None
    corpus_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRun:
    """A run cut at one (EP, batch size): the busiest rank of every layer of every full batch, by batch, then layer."""

    identity: RunIdentity
    ep: int
    batch_tokens: int
    num_batches: int
    num_tokens: int
    dropped_tokens: int
    layers: tuple[BatchWorst, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Above:
    """A batch above an allowance: its worst layer among those that the entry speaks for, and how many of them are above."""

    worst: BatchWorst
    num_layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One entry against one run: the largest imbalance, and every batch that is above the allowance."""

    entry: Entry
    identity: RunIdentity
    num_batches: int
    num_tokens: int
    dropped_tokens: int
    worst: BatchWorst | None
    above: tuple[Above, ...]

    @property
    def outcome(self) -> Outcome:
        """`proven` holds without a batch, because no batch can exceed the ceiling; `unmeasured` is neither good nor bad."""
        if self.above:
            return "exceeded"
        if self.num_batches:
            return "holds"
        return "proven" if self.entry.allowance >= self.entry.evidence.ceiling else "unmeasured"

    @property
    def where(self) -> str:
        """`ep=8 batch_tokens=2000`, and the layer where the entry is of one."""
        place = f"ep={self.entry.ep} batch_tokens={self.entry.batch_tokens}"
        return place if self.entry.layer == "all" else f"{place} layer={self.entry.layer}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """What an allowance would have to be; a person decides, nothing is changed."""

    ep: int
    batch_tokens: int
    layer: Layer
    allowance: Decimal
    proposed: Decimal
    binds: str


def compare(entry: Entry, cut: CutRun) -> Comparison:
    """Exact: an imbalance equal to the allowance is not above it."""
    allowance = Fraction(entry.allowance)
    worsts: dict[int, BatchWorst] = {}
    above: dict[int, int] = {}
    for one in cut.layers:
        if entry.layer not in ("all", one.layer):
            continue
        found = worsts.setdefault(one.batch, one)
        if one.ratio(cut.ep) > found.ratio(cut.ep):
            worsts[one.batch] = one
        if one.busiest_rows * cut.ep * allowance.denominator > allowance.numerator * one.routed_rows:
            above[one.batch] = above.get(one.batch, 0) + 1
    ranked = sorted(worsts.values(), key=lambda one: (-one.ratio(cut.ep), one.batch))
    return Comparison(
        entry=entry,
        identity=cut.identity,
        num_batches=cut.num_batches,
        num_tokens=cut.num_tokens,
        dropped_tokens=cut.dropped_tokens,
        worst=ranked[0] if ranked else None,
        above=tuple(Above(worst=one, num_layers=above[one.batch]) for one in ranked if one.batch in above),
    )


def evidence_of(comparison: Comparison) -> PolicyEvidence | None:
    """What the entry says of this very run (the same counts of the same corpus); None for a run that it wasn't fitted to."""
    mine = (comparison.identity.content_hash, comparison.identity.corpus_hash)
    return next((one for one in comparison.entry.evidence.policies if (one.content_hash, one.corpus_hash) == mine), None)


def evidence_fault(comparison: Comparison) -> str | None:
    """How the entry's evidence differs from what its own run shows when it is cut again; None where it doesn't."""
    claimed = evidence_of(comparison)
    if claimed is None:
        return None
    seen = comparison.worst.decimal(comparison.entry.ep) if comparison.worst else None
    pairs = (("full batches", claimed.num_batches, comparison.num_batches), ("observed max", claimed.observed_max, seen))
    where = f"{comparison.identity.label} at {comparison.where}"
    return next(
        (f"{where}: the table says {what} {mine}, its run {theirs}" for what, mine, theirs in pairs if mine != theirs), None
    )


def failure(
    where: str, comparisons: Sequence[Comparison], proposals: Sequence[Proposal], *, next_step: str = NOTHING_CHANGED
) -> str | None:
    """One line for whoever runs the check: how many allowances are exceeded, the furthest, what to do next; None where all hold.

    `where` names the table, `next_step` says what to do.
    """
    exceeded = [one for one in comparisons if one.above]
    if not exceeded:
        return None
    worst = max(exceeded, key=lambda one: Fraction(_imbalance(one)) / Fraction(one.entry.allowance))
    most = worst.above[0].worst
    proposed = next((one.proposed for one in proposals if _place(one) == _place(worst.entry)), None)
    hint = f"; proposed {decimal_text(proposed)}" if proposed is not None else ""
    factors = f"{float(_imbalance(worst)):.6f} against {decimal_text(worst.entry.allowance)}"
    place = f"policy '{worst.identity.label}' (run {worst.identity.run}), layer {most.layer}, batch {most.batch}"
    exceeded_entries = _entries([one.entry for one in exceeded])
    return f"{where}: {exceeded_entries} exceeded, the furthest at {worst.where}: {factors}, {place}{hint}; {next_step}"


def nothing_said(where: str, comparisons: Sequence[Comparison]) -> str | None:
    """Why the runs neither pass nor fail the table; None where at least one entry was compared, or holds without a batch."""
    if any(one.outcome != "unmeasured" for one in comparisons):
        return None
    sizes = ", ".join(format_size(size) for size in sorted({one.entry.batch_tokens for one in comparisons}))
    return f"{where}: no run has a full batch of any of its sizes ({sizes} tokens), so nothing was checked; measure more tokens"


def unmeasured(comparisons: Iterable[Comparison]) -> list[str]:
    """A sentence for each entry and run without a full batch."""
    return [
        f"{one.identity.run}: no full batch at {one.where}, the run holds {one.dropped_tokens:,} tokens; "
        + ("the allowance is the proven ceiling and holds without one" if one.outcome == "proven" else "nothing is said of it")
        for one in comparisons
        if one.outcome in ("proven", "unmeasured")
    ]


def _entries(entries: Sequence[Entry]) -> str:
    number = len({_place(entry) for entry in entries})
    return "one allowance is" if number == 1 else f"{number} allowances are"


def _place(one: Entry | Proposal) -> tuple[int, int, Layer]:
    return one.ep, one.batch_tokens, one.layer


def _imbalance(comparison: Comparison) -> Decimal:
    return comparison.above[0].worst.decimal(comparison.entry.ep)
