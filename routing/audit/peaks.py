"""Estimates against measured memory peaks, in the form in which such errors are published: over or under, raw."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from routing.core.peak import MeasuredPeak

_PUBLISHED = "published"  # a source that begins with it was not measured here


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBytes:
    """What is alive at one rank's own peak, by term, largest estimate first in the order of the sum."""

    rank: int
    terms: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        """The rank's estimate."""
        return sum(num_bytes for _, num_bytes in self.terms)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakFacts:
    """One measured peak and the estimate of its wave at the table's allowance; bytes are above the baseline."""

    peak: MeasuredPeak
    ep: int
    cp: int
    allowance: Decimal
    status: str
    binding_rank: int
    estimate_bytes: int
    hybridep_bytes: int
    ranks: tuple[RankBytes, ...]
    warnings: tuple[str, ...]

    @property
    def without_hybridep_bytes(self) -> int:
        """What PyTorch's peak can show: the buffer is outside its allocator."""
        return self.estimate_bytes - self.hybridep_bytes

    @property
    def over_fraction(self) -> float:
        """Estimate / peak - 1, the buffer included."""
        return self.estimate_bytes / self.peak.measured_bytes - 1

    @property
    def over_fraction_without_hybridep(self) -> float:
        """Estimate / peak - 1 of like with like."""
        return self.without_hybridep_bytes / self.peak.measured_bytes - 1

    @property
    def is_under(self) -> bool:
        """Whether the peak is above the estimate without the buffer, which can't cover for what PyTorch allocates."""
        return self.without_hybridep_bytes < self.peak.measured_bytes

    @property
    def is_published(self) -> bool:
        """Whether its source says that others reported it."""
        return self.peak.source.lower().startswith(_PUBLISHED)


def untested_eps(eps: Sequence[int], peaks: Sequence[PeakFacts]) -> tuple[int, ...]:
    """EP sizes of the table at which no measured peak is at hand."""
    tested = {one.ep for one in peaks}
    return tuple(ep for ep in sorted(set(eps)) if ep not in tested)
