"""A dispatch in training that was above its allowance, with the numbers that a refit needs."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from routing.core.allowance import Floor, Layer, ceil_to
from routing.core.fields import FieldError, put, whole

FLOOR_GRID = Decimal("0.000001")
MAX_STEP = 10**15
_SENTENCE_GRID = Decimal("0.0001")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exceedance:
    """`event` is `exceeded` the first time in a layer, `larger` where a later dispatch needs a larger allowance still.

    `busiest_rows` are the rank's and `routed_rows` the layer's over all ranks, (token, expert) pairs; `batch_tokens` are the
    tokens dispatched together. Layer and rank are 0-based. The allowance is that of the entry at `allowance_batch_tokens` and
    `allowance_layer` of the table with `table_hash`.
    """

    event: Literal["exceeded", "larger"]
    step: int
    layer: int
    rank: int
    ep: int
    batch_tokens: int
    busiest_rows: int
    routed_rows: int
    imbalance: Decimal
    allowance: Decimal
    allowance_batch_tokens: int
    allowance_layer: Layer
    placement: str
    shape_hash: str
    table_hash: str
    time: str

    def __post_init__(self) -> None:
        for name in ("step", "layer", "rank"):
            put(self, name, whole((name,), getattr(self, name), high=MAX_STEP))
        for name in ("ep", "batch_tokens", "busiest_rows", "routed_rows", "allowance_batch_tokens"):
            put(self, name, whole((name,), getattr(self, name), low=1, high=10**15))
        if not self.allowance >= 1:
            raise FieldError(("allowance",), f"{self.allowance} is below 1, which is even")
        if self.rank >= self.ep:
            raise FieldError(("rank",), f"{self.rank} is no rank of ep={self.ep}")
        if not self.routed_rows <= self.busiest_rows * self.ep <= self.routed_rows * self.ep:
            what = f"{self.busiest_rows} is no busiest rank's share of {self.routed_rows} at ep={self.ep}"
            raise FieldError(("busiest_rows",), what)

    @property
    def ratio(self) -> Fraction:
        """Busiest rank over the even share, exact."""
        return Fraction(self.busiest_rows * self.ep, self.routed_rows)

    def floor(self, source: str) -> Floor:
        """The floor that a fit takes, up to 1e-6."""
        return Floor(
            value=ceil_to(self.ratio, FLOOR_GRID),
            source=f"{source}: step {self.step}, rank {self.rank}",
            kind="measured",
            batch_tokens=self.batch_tokens,
            layer=self.layer,
        )

    def sentence(self) -> str:
        """What a person reads in the trainer's log; the imbalance up to 1e-4, so that it is never shown at the allowance."""
        imbalance = float(ceil_to(self.ratio, _SENTENCE_GRID))
        rows = f"rank {self.rank} has {self.busiest_rows:,} of {self.routed_rows:,} rows, {self.batch_tokens:,} tokens"
        return (
            f"layer {self.layer} at step {self.step}: imbalance {imbalance} at EP {self.ep} is above the allowance "
            f"{self.allowance} ({rows})"
        )
