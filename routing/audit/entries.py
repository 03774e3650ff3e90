"""A table's entries beside what the runs say of each, and its evidence counted again where its runs are at hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from routing.audit.claims import Comparison, Outcome, evidence_fault, evidence_of
from routing.audit.difference import halves_of, held_out_of
from routing.core.allowance import AllowanceTable, Entry, PolicyEvidence
from routing.core.coverage import NUM_TO_COVER
from routing.core.judgement import Level

Standing = Literal["exceeded", "unvalidated", "untested", "limited", "holds", "proven", "unmeasured"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceRow:
    """What an entry says of one policy, and whether its run was cut again here and shows the same."""

    claimed: PolicyEvidence
    recount: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryFacts:
    """An entry, what the runs say of it, and its evidence counted again where its runs are at hand."""

    entry: Entry
    comparisons: tuple[Comparison, ...]
    evidence: tuple[EvidenceRow, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst over runs: exceeded, holds, proven, unmeasured."""
        found = {one.outcome for one in self.comparisons}
        ranked: tuple[Outcome, ...] = ("exceeded", "holds", "proven")
        return next((outcome for outcome in ranked if outcome in found), "unmeasured")

    @property
    def is_its_own(self) -> bool:
        """Whether every run that it was compared with is one that it was fitted to."""
        measured = [one for one in self.comparisons if one.num_batches]
        return bool(measured) and all(evidence_of(one) is not None for one in measured)

    @property
    def is_validated(self) -> bool | None:
        """Whether no batch of either half of a run's units exceeds what the other half allows; None where no half was tried."""
        held_out = held_out_of(self.entry)
        return None if held_out is None else not held_out[0]

    @property
    def halves_by(self) -> tuple[str, ...]:
        """The rules, other than the entry's own, that halves of its runs' units were fitted by; they had too little for it."""
        return tuple(sorted({one.method for one in halves_of(self.entry)} - {self.entry.evidence.method}))

    @property
    def failed_parts(self) -> tuple[str, ...]:
        """`policy` and `source` where a fit without one of them is exceeded in it."""
        failed = {one.kind for one in self.entry.evidence.held_out or () if one.num_above}
        return tuple(word for kind, word in (("policy", "policy"), ("stratum", "source")) if kind in failed)

    @property
    def few_batches(self) -> int | None:
        """The fewest batches of a policy in its evidence where their largest covers under 95%; None where it covers more."""
        if self.entry.status not in ("fitted", "headroom"):
            return None
        fewest = min((one.num_batches for one in self.entry.evidence.policies if one.num_batches), default=NUM_TO_COVER)
        return fewest if fewest < NUM_TO_COVER else None

    @property
    def standing(self) -> Standing:
        """`outcome`; of what holds the first of these that is so.

        `unvalidated`: a held-out half failed. `untested`: only its own runs say so. `limited`: a held-out policy or source
        failed, its halves went by another rule, or there are few batches.
        """
        if self.outcome != "holds":
            return self.outcome
        if self.is_validated is False:
            return "unvalidated"
        if self.is_its_own and self.is_validated is None:
            return "untested"
        return "limited" if self.failed_parts or self.halves_by or self.few_batches is not None else "holds"

    @property
    def warning_codes(self) -> frozenset[str]:
        """What the evidence's warnings are called, before their `:`."""
        return frozenset(warning.partition(":")[0] for warning in self.entry.evidence.warnings)

    @property
    def slack(self) -> Decimal | None:
        """Allowance minus the observed max of the evidence; what an edited entry still says it has left is not taken."""
        claimed = self.entry.evidence.observed_max
        return None if claimed is None else self.entry.allowance - claimed.imbalance

    @property
    def level(self) -> Level | None:
        """The resampled level that bounds the allowance, of a stratum or of a run's mix; None where none was resampled."""
        found = [one for one in (self.entry.evidence.estimate, self.entry.evidence.stress) if one is not None]
        return max(found, key=lambda one: one.high, default=None)

    @property
    def seen(self) -> Decimal | None:
        """The largest imbalance that the runs show; None without a full batch."""
        worsts = [one.worst.decimal(self.entry.ep) for one in self.comparisons if one.worst is not None]
        return max(worsts, default=None)


def entry_facts(table: AllowanceTable, comparisons: Sequence[Comparison]) -> tuple[EntryFacts, ...]:
    """The table's entries in its order, each with its comparisons and its evidence."""
    found = []
    for entry in table.entries:
        mine = tuple(one for one in comparisons if one.entry is entry)
        evidence = tuple(EvidenceRow(claimed=one, recount=_recount(one, mine)) for one in entry.evidence.policies)
        found.append(EntryFacts(entry=entry, comparisons=mine, evidence=evidence))
    return tuple(found)


def _recount(claimed: PolicyEvidence, comparisons: Sequence[Comparison]) -> str:
    for one in comparisons:
        if evidence_of(one) is claimed:
            return "differs" if evidence_fault(one) else "equal"
    return "not at hand"
