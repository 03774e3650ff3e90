"""An estimate: named terms that add up to the bytes above what was allocated when the call began."""

from dataclasses import dataclass
from decimal import Decimal

from routing.core.observed import Caution
from routing.estimate.lookup import AllowanceUsed


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One part of the total on the binding rank.

    `rows` and `bytes_per_row` are null where there is no single pair; their product, rounded up, is `bytes`. `layer` is null
    where the bytes are of no single layer.
    """

    name: str
    rank: int
    layer: int | None
    rows: int | None
    bytes_per_row: Decimal | None
    bytes: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTotal:
    """The floor of one rank, without its pending adapter gradients, and what they add."""

    rank: int
    without_adapters_bytes: int
    adapter_extra_bytes: int

    @property
    def total_bytes(self) -> int:
        """The rank's floor."""
        return self.without_adapters_bytes + self.adapter_extra_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The price of a wave; everything is bytes above the baseline (weights, adapters, optimizer state).

    `total_bytes` is the floor, or the walk where per-layer allowances were asked for and there are some. `binding_layer` is null
    where the LM head binds. `floor_and_walk` says why the two differ, or that they don't.
    """

    total_bytes: int
    floor_bytes: int
    walk_bytes: int
    required_bytes: int
    total_without_hybridep_bytes: int
    hybridep_bytes: int
    outside_bytes: int
    binding_rank: int
    binding_layer: int | None
    terms: tuple[Term, ...]
    allowance: AllowanceUsed
    ranks: tuple[RankTotal, ...]
    floor_and_walk: str
    omitted: tuple[str, ...]
    cautions: tuple[Caution, ...]

    @property
    def unpaired_bytes(self) -> int:
        """The floor that adds one rank's largest extra to another rank's largest rest; the pricing never does."""
        rest = max(one.without_adapters_bytes for one in self.ranks)
        return rest + max(one.adapter_extra_bytes for one in self.ranks)

    def explain(self) -> str:
        """What is alive at the peak, by term, and what is left out, as a table that a person reads."""
        from routing.estimate.explain import explain

        return explain(self)
