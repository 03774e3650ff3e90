"""What the query room hands the fit: each batch's worst rank as whole numbers, and what it was measured on."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from routing.core.shapes import ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Caution:
    """A warning: a code that programs compare, a sentence that people read."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertLoad:
    """Routed rows of one expert, 0-based, in one batch and layer."""

    expert: int
    routed_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchWorst:
    """The (layer, rank) of one batch with the largest imbalance; ties go to the smallest. All indices are 0-based.

    `routed_rows` are the layer's over all ranks, `busiest_rows` the rank's.
    """

    batch: int
    layer: int
    rank: int
    busiest_rows: int
    routed_rows: int

    def imbalance(self, ep: int) -> Fraction:
        """Busiest rank over the even share, exact; 1 is even."""
        return Fraction(self.busiest_rows * ep, self.routed_rows)

    def ratio(self, ep: int) -> float:
        """The same by the query's one float64 division."""
        return self.busiest_rows * ep / self.routed_rows

    def decimal(self, ep: int) -> Decimal:
        """`ratio` as its shortest decimal, which is how a table writes it."""
        return Decimal(repr(self.ratio(ep)))


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedWorsts:
    """One run cut into batches of `batch_tokens` at one EP size: the worst of every full batch, in batch order.

    `num_tokens` are those of full batches, `dropped_tokens` the rest; `units` are the names of what moves together among the
    trajectories in full batches; `top_experts` belong to the largest worst.
    """

    ep: int
    batch_tokens: int
    num_tokens: int
    dropped_tokens: int
    units: frozenset[str]
    worsts: tuple[BatchWorst, ...]
    top_experts: tuple[ExpertLoad, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A run as the fit sees it: the policy, the choices that could change a count, and the worsts at every (EP, batch size)."""

    run: str
    label: str
    policy: str
    revision: str
    weights_sha256: str
    shape: ModelShape
    dtype: str
    segment_tokens: int
    view: str
    order: str
    content_hash: str | None
    corpus_hash: str
    is_finished: bool
    observed: tuple[ObservedWorsts, ...]
