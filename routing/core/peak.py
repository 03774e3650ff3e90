"""A memory peak that somebody measured, and the wave it was measured on."""

from dataclasses import dataclass
from typing import Literal

from routing.core.errors import InputError

State = Literal["cold", "warm"]
STATES = ("cold", "warm")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """PyTorch's peak and what was allocated before the call, of the most-loaded rank.

    `wave` names the wave in the file of waves, `source` says who measured it and where. Cold is a first gradient execution.
    """

    wave: str
    baseline_bytes: int
    peak_bytes: int
    state: State
    source: str

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise InputError(f"state: {str(self.state)[:40]!r} is neither {' nor '.join(STATES)}")
        if self.peak_bytes <= self.baseline_bytes:
            raise InputError(f"peak_bytes: {self.peak_bytes} is not above baseline_bytes {self.baseline_bytes}")
        if not self.wave or not self.source.strip():
            raise InputError("wave and source: both are needed, a peak without them belongs to nobody")

    @property
    def measured_bytes(self) -> int:
        """What an estimate is compared with."""
        return self.peak_bytes - self.baseline_bytes
