"""Imbalances that others reported: a claim of its authors, a row each."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from routing.core.errors import InputError

# `measured`: the worst of all batches of a known size. `small_sample`: seen, in fewer tokens than a batch. `inferred`: what a
# run's behaviour implied. `context`: told beside the others, bounds nothing.
Kind = Literal["measured", "small_sample", "inferred", "context"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedWorst:
    """The largest imbalance of any layer at one EP size; `batch_tokens` and `tokens` are null where the source lacks them.

    Raises InputError, naming the field, for what can't be an imbalance, and for a measured one without its two sizes.
    """

    policy: str
    kind: Kind
    ep: int
    batch_tokens: int | None
    worst_imbalance: Decimal
    tokens: int | None
    source: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if self.ep < 2:
            raise InputError(f"ep={self.ep} has no imbalance; it starts at 2")
        if not 1 <= self.worst_imbalance <= self.ep:
            raise InputError(f"worst_imbalance={self.worst_imbalance} is outside 1 to ep={self.ep}")
        for name in ("batch_tokens", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} is not positive")
        if self.kind == "measured" and (self.batch_tokens is None or self.num_batches == 0):
            raise InputError("a measured worst states batch_tokens, and tokens of at least one batch")

    @property
    def num_batches(self) -> int:
        """Full batches in `tokens`, if each held no more than `batch_tokens`; 0 where either is not stated."""
        return (self.tokens or 0) // self.batch_tokens if self.batch_tokens else 0
