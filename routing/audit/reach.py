"""How far the evidence reaches: chances and shares from the number of batches, and what alone is proven."""

from collections.abc import Iterator
from dataclasses import dataclass

from routing.audit.facts import Facts
from routing.audit.words import exact, listed, place
from routing.core.coverage import (
    HELD_OUT,
    IS_PROVEN,
    MORE_UNITS,
    NEEDED_BATCHES,
    NEXT_BATCH,
    ONLY_PROVEN,
    covered_share,
    next_exceeds,
)

NUM_NEXT_BATCHES = 1000
# In coverage sentences of a table: what the page tells as a table of its own, or once for all EP sizes.
_TOLD_ELSEWHERE = (HELD_OUT, NEXT_BATCH, MORE_UNITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """What a policy's batches of one size say of its next ones: chances to exceed the largest seen, share covered at 95%."""

    batch_tokens: int
    policy: str
    num_batches: int
    num_units: int | None
    next_exceeds: float
    next_thousand_exceed: float
    covered_share: float


def reach(facts: Facts) -> tuple[Reach, ...]:
    """A row for each batch size and policy of the table's evidence, in its order."""
    found = {
        (one.entry.batch_tokens, claimed.label, claimed.num_batches, claimed.num_units)
        for one in facts.entries
        for claimed in one.entry.evidence.policies
        if claimed.num_batches
    }
    return tuple(
        Reach(
            batch_tokens=batch_tokens,
            policy=policy,
            num_batches=num_batches,
            num_units=num_units,
            next_exceeds=next_exceeds(num_batches),
            next_thousand_exceed=next_exceeds(num_batches, NUM_NEXT_BATCHES),
            covered_share=covered_share(num_batches),
        )
        for batch_tokens, policy, num_batches, num_units in sorted(found, key=lambda one: (-one[0], one[1]))
    )


def limits(facts: Facts) -> tuple[str, ...]:
    """What the evidence supports, of all entries together."""
    (low, of_low), (high, of_high) = NEEDED_BATCHES
    found = [
        "The chances are of exceeding the largest imbalance seen, not the allowance, which lies above it by its slack; they "
        "suppose that the next batches come as the measured ones did.",
        f"To cover {low} of batches at 95% confidence takes {of_low} batches, to cover {high} takes {of_high}.",
        f"Only min(EP, E/k) is proven, E experts and k of them a token: {ceilings(facts)}. No sample proves that less is enough.",
    ]
    if not any(one.entry.evidence.held_out for one in facts.entries):
        found.append("The table holds no held-out test: no fit on half of the units was tried on the other half.")
    return tuple(found)


def stated(facts: Facts) -> tuple[str, ...]:
    """What else the entries say of themselves, each with its place."""
    return tuple(_stated(facts))


def _stated(facts: Facts) -> Iterator[str]:
    for one in facts.entries:
        for line in one.entry.evidence.coverage:
            if not _is_told_elsewhere(line):
                yield f"{place(one.entry)}: {line}"


def _is_told_elsewhere(line: str) -> bool:
    """Whether the whole of it is: a sentence that goes on after the ceiling says more."""
    return (line.startswith(ONLY_PROVEN) and line.endswith(IS_PROVEN)) or any(told in line for told in _TOLD_ELSEWHERE)


def ceilings(facts: Facts) -> str:
    """`2.0 at EP 2 and 4.0 at EP 4`: what no batch can exceed."""
    found = {one.entry.ep: one.entry.evidence.ceiling for one in facts.entries}
    return listed(f"{exact(value)} at EP {ep}" for ep, value in sorted(found.items()))


def uncalibrated(facts: Facts) -> tuple[int, ...]:
    """Batch sizes of the table that no calibration at hand is of, the largest first; none where there is no calibration."""
    sizes = {one.entry.batch_tokens for one in facts.entries} - {one.batch_tokens for one in facts.calibrations}
    return tuple(sorted(sizes, reverse=True)) if facts.calibrations else ()
