"""The records of audit.json: numbers unrounded, ratios with 1.0 even, indices 0-based."""

from dataclasses import dataclass
from typing import Literal

from routing.audit.claims import Outcome
from routing.audit.entries import Standing
from routing.audit.facts import BatchWorsts, CorpusFile, LayerRow, PolicyPair, ShareRow, WorstRow
from routing.audit.reach import Reach
from routing.core.allowance import Layer, Status
from routing.core.calibration import Calibration


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictRecord:
    """What the page says first."""

    kind: Literal["holds", "fails", "open"]
    headline: str
    action: str
    sentences: tuple[str, ...]
    not_covered: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRecord:
    """The table that was held against the runs, and how its batches are cut."""

    name: str
    model: str
    placement: str
    content_hash: str
    view: str
    order: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowanceRecord:
    """An entry and what the runs say of it.

    `standing` is `outcome`, but `unvalidated` where what holds failed on held-out halves, `untested` where only its own runs
    say so and no half was tried, `limited` where a held-out policy or source failed, halves went by another rule than the
    entry or a policy has under 59 batches. `seen` is the largest imbalance in these runs, `observed_max` that of the evidence;
    `level_*` is the binding resampled level and its 95% interval, null where none was resampled. Held-out counts are of halves of
    the units.
    """

    ep: int
    batch_tokens: int
    layer: Layer
    allowance: float
    status: Status
    method: str
    outcome: Outcome
    standing: Standing
    seen: float | None
    observed_max: float | None
    observed_policy: str | None
    observed_layer: int | None
    observed_batch: int | None
    observed_rank: int | None
    slack: float | None
    raw_bound: float | None
    level_estimate: float | None
    level_low: float | None
    level_high: float | None
    ceiling: float
    binds: str
    num_batches: int
    num_units: int | None
    held_out_above: int | None
    held_out_batches: int | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AboveRecord:
    """A batch above an allowance, by its worst layer; `run` is the run directory's name."""

    run: str
    policy: str
    ep: int
    batch_tokens: int
    allowance_layer: Layer
    allowance: float
    imbalance: float
    layer: int
    batch: int
    rank: int
    layers_above: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A measured run; `run` is its directory's name, `refused` counts by reason, `device` is empty for a recorded one."""

    name: str
    run: str
    label: str
    policy: str
    architecture: str
    markings: tuple[str, ...]
    num_moe_layers: int
    num_experts: int
    top_k: int
    tokens_packed: int
    tokens_logical: int
    num_trajectories: int
    refused: dict[str, int]
    content_hash: str | None
    corpus_hash: str
    device: str
    is_dirty: bool
    files: tuple[CorpusFile, ...]
    provenance: dict[str, str]
    worsts: tuple[WorstRow, ...]
    layers: tuple[LayerRow, ...]
    shares: tuple[ShareRow, ...]
    batches: tuple[BatchWorsts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeRecord:
    """An entry against the earlier table."""

    ep: int
    batch_tokens: int
    layer: Layer
    change: Literal["new", "gone", "raised", "lowered", "same"]
    previous: float | None
    allowance: float | None
    lost_support: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutRecord:
    """A fit without a part of the counts, held against that part."""

    ep: int
    batch_tokens: int
    layer: Layer
    kind: Literal["units", "policy", "stratum"]
    policy: str
    part: str
    method: str
    allowance: float
    num_batches: int
    num_above: int
    worst: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TermRecord:
    """What is alive on a rank at its own estimated peak."""

    rank: int
    term: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakRecord:
    """An estimate against a measured peak; over is estimate / measured - 1."""

    wave: str
    state: Literal["cold", "warm"]
    source: str
    ep: int
    cp: int
    allowance: float
    status: str
    baseline_bytes: int
    peak_bytes: int
    measured_bytes: int
    estimate_bytes: int
    without_hybridep_bytes: int
    over_fraction: float
    over_fraction_without_hybridep: float
    is_under: bool
    binding_rank: int
    alive: tuple[TermRecord, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsRecord:
    """How far the evidence reaches, the checks that held, and the EP sizes without any measured peak."""

    reach: tuple[Reach, ...]
    sentences: tuple[str, ...]
    checks: tuple[str, ...]
    eps_without_peak: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """What `routing report --json` prints: the page's facts. `changes` is null where no earlier table was named."""

    schema_version: Literal[1]
    generator: Literal["routing report"]
    verdict: VerdictRecord
    table: TableRecord
    reference_batch_tokens: int | None
    allowances: tuple[AllowanceRecord, ...]
    above: tuple[AboveRecord, ...]
    runs: tuple[RunRecord, ...]
    pairs: tuple[PolicyPair, ...]
    changes: tuple[ChangeRecord, ...] | None
    held_out: tuple[HeldOutRecord, ...]
    calibrations: tuple[Calibration, ...]
    peaks: tuple[PeakRecord, ...]
    limits: LimitsRecord
    provenance: dict[str, str]
