"""What the page is made of: measured runs, the table that is held against them, and whence both come."""

from dataclasses import dataclass

from routing.audit.claims import Comparison, Proposal
from routing.audit.difference import Moved
from routing.audit.entries import EntryFacts
from routing.audit.peaks import PeakFacts
from routing.core.allowance import AllowanceTable
from routing.core.calibration import Calibration

MARKING_WORDS = ("simulated", "toy", "untrained", "random", "demo", "test")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusFile:
    """One file that was read; rows = kept + refused + those not taken."""

    name: str
    format: str
    rows: int
    kept: int
    refused: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorstRow:
    """A run at one (EP, batch size). Ratios and places are null without a full batch; places are 0-based.

    `mean_over_layers` and `pooled_over_layers` are of the worst batch. `num_tokens` are those of full batches. `uniform` is the
    median of what a router without any preference would show as worst over as many batches and layers.
    """

    ep: int
    batch_tokens: int
    num_batches: int
    num_tokens: int
    dropped_tokens: int
    worst_imbalance: float | None
    worst_layer: int | None
    worst_batch: int | None
    worst_rank: int | None
    mean_over_layers: float | None
    pooled_over_layers: float | None
    uniform: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRow:
    """The largest imbalance of one layer over the full batches of one (EP, batch size)."""

    ep: int
    batch_tokens: int
    layer: int
    worst_imbalance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareRow:
    """One rank's rows over the layer's even share, in the worst batch of an (EP, batch size); null in a layer without rows."""

    ep: int
    batch_tokens: int
    batch: int
    layer: int
    rank: int
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchWorsts:
    """The worst layer's imbalance of every full batch of an (EP, batch size), in batch order."""

    ep: int
    batch_tokens: int
    imbalances: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """One run; `name` tells it from the others on the page. Tokens are of the whole run.

    `script` makes the run's tables in DuckDB again, for whoever pastes it. `origin` is `measured` by forward passes, or
    `recorded` by another engine and imported. `num_units` is of what moves together, as the table's units are.
    `device` names it with its number type, empty for a recorded run; `is_dirty` where
    the program that measured it held more than its commit.
    """

    name: str
    run: str
    label: str
    origin: str
    policy: str
    architecture: str
    markings: tuple[str, ...]
    num_layers: int
    num_moe_layers: int
    num_experts: int
    top_k: int
    tokens_packed: int
    tokens_logical: int
    num_trajectories: int
    files: tuple[CorpusFile, ...]
    refused: tuple[tuple[str, int], ...]
    num_without_router: int  # of the refused: trajectories that a forward pass met no router for, and --skip-bad left out
    provenance: Pairs
    content_hash: str | None
    corpus_hash: str
    worsts: tuple[WorstRow, ...]
    layers: tuple[LayerRow, ...]
    shares: tuple[ShareRow, ...] = ()
    batches: tuple[BatchWorsts, ...] = ()
    script: str = ""
    device: str = ""
    is_dirty: bool = False
    num_units: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerMove:
    """A layer in two runs, all tokens of a run as one batch: both imbalances and the 95% interval of other minus base."""

    ep: int
    layer: int
    base_imbalance: float
    other_imbalance: float
    low: float
    high: float
    is_beyond: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyPair:
    """Two runs side by side by name; `is_paired` where they hold the same corpus. No `layers` where `why_not` says why."""

    base: str
    other: str
    is_paired: bool
    layers: tuple[LayerMove, ...]
    why_not: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A query behind a chart or table: its file's name and text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that the page is written from. `view` and `order` are how its batches were cut.

    `against` is the difference to an earlier table, `against_name` its file; None where none was named. `calibrations` are of
    the methods that the table names.
    """

    table: AllowanceTable
    table_name: str
    runs: tuple[RunFacts, ...]
    entries: tuple[EntryFacts, ...]
    proposals: tuple[Proposal, ...]
    view: str
    order: str
    checks: tuple[str, ...]
    queries: tuple[Query, ...]
    provenance: Pairs
    pairs: tuple[PolicyPair, ...] = ()
    peaks: tuple[PeakFacts, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    against: tuple[Moved, ...] | None = None
    against_name: str | None = None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(one for entry in self.entries for one in entry.comparisons)


def markings(*names: str) -> tuple[str, ...]:
    """The words in a run's label, policy and file names that say it is no production policy or corpus."""
    text = " ".join(names).lower()
    words = set("".join(letter if letter.isalnum() else " " for letter in text).split())
    return tuple(word for word in MARKING_WORDS if word in words)
