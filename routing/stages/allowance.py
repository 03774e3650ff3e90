"""`routing allowance` and `routing explain`: which entry counts, in whose units, and what a tighter one would be worth."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from routing.core.allowance import AllowanceTable, Entry, ceil_to
from routing.core.capacity import STACKS
from routing.core.errors import InputError
from routing.core.lookup import find_entry, sizes_at
from routing.core.wave import Wave
from routing.estimate.bounds import LargestWave
from routing.estimate.ledger import OBSERVED_MARGIN
from routing.estimate.result import Estimate
from routing.stages.estimator import Estimator
from routing.store.allowances import read_table
from routing.store.packaged import packaged
from routing.store.waves import read_wave


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowanceAnswer:
    """`body` as `--json` gives it; `warnings` one line each."""

    body: dict[str, Any]
    warnings: tuple[str, ...]


def allowance(table_path: Path | None, *, ep: int, batch_tokens: int, layer: int | None, stack: str | None) -> AllowanceAnswer:
    """The entry that counts for a dispatch of `batch_tokens` over the EP group; with `stack` the factor that it expects.

    InputError for an EP size without an entry, a layer that is none, a stack that isn't known.
    """
    if stack is not None and stack not in STACKS:
        raise InputError(f"--for: {stack[:40]!r} is none of {', '.join(STACKS)}")
    table, where = _table(table_path)
    entry = find_entry(table, ep=ep, tokens=batch_tokens, layer=layer)
    body = {
        "table": where,
        "model": table.model.name,
        "placement": table.placement,
        "ep": ep,
        "batch_tokens": batch_tokens,
        "layer": "all" if layer is None else layer,
        "allowance": float(entry.allowance),
        "entry": {name: getattr(entry, name) for name in ("batch_tokens", "layer", "status")} | {"binds": entry.evidence.binds},
        "proven_ceiling": float(entry.evidence.ceiling),
    }
    warnings = []
    if stack is not None:
        sizes = {"ep": ep, "num_experts": table.model.num_experts, "top_k": table.model.top_k}
        capacity = asdict(STACKS[stack](entry.allowance, **sizes))
        body["capacity"] = capacity | {"factor": float(capacity["factor"])}
    smallest = sizes_at(table, ep)[0]
    if batch_tokens < smallest:
        warnings.append(
            f"below_fitted_batch: {batch_tokens} tokens, the smallest fitted batch has {smallest}: small batches are less even"
        )
    return AllowanceAnswer(body=body, warnings=tuple(warnings))


def explain(table_path: Path, *, wave_path: Path) -> AllowanceAnswer:
    """Prices the wave; of the entry that it was priced with, what binds, what a tighter one would admit in the same bytes.

    InputError where no entry was looked up: at EP 1, and on the transformers stack.
    """
    table, wave = read_table(table_path), read_wave(wave_path)
    loaded = Estimator.load(model=wave.model)
    estimator = Estimator(shape=loaded.shape, table=table, placement=table.placement)
    estimate = estimator.price(wave)
    used = estimate.allowance
    if used.batch_tokens is None:
        raise InputError(f"{wave_path}: at EP {used.ep} no allowance is looked up, none binds")
    entry = find_entry(table, ep=used.ep, tokens=used.batch_tokens)
    evidence = entry.evidence
    body = {
        "table": str(table_path),
        "wave": str(wave_path),
        "model": table.model.name,
        "required_bytes": estimate.required_bytes,
        "seen_with_margin": _float(used.seen),
        "entry": {
            "ep": entry.ep,
            "batch_tokens": entry.batch_tokens,
            "layer": entry.layer,
            "allowance": float(entry.allowance),
            "status": entry.status,
            "binds": evidence.binds,
            "raw_bound": _float(evidence.raw_bound),
            "observed_max": _float(evidence.observed_max.imbalance if evidence.observed_max else None),
            "floors": [{"value": float(floor.value), "source": floor.source} for floor in evidence.floors],
        },
        "admits": list(_admitted(estimator, table, entry, wave, estimate)),
        "least_by_evidence": float(_least(entry)),
        "coverage": list(evidence.coverage),
    }
    return AllowanceAnswer(body=body, warnings=tuple(f"{one.code}: {one.message}" for one in estimate.cautions))


def _admitted(
    estimator: Estimator, table: AllowanceTable, entry: Entry, wave: Wave, estimate: Estimate
) -> Iterator[dict[str, Any]]:
    """The most tokens in the wave's own required bytes, at the entry's allowance and at each step of the grid below it.

    Below the observed share that binds: a step there admits no more, and is left out.
    """
    seen = Decimal(1) if wave.observed is None else wave.observed.worst + OBSERVED_MARGIN
    first: int | None = None
    value = entry.allowance
    while value >= seen or first is None:
        tokens = _largest(estimator, tightened(table, entry, value), wave, estimate.required_bytes).rows
        first = tokens if first is None else first
        yield {
            "allowance": float(value),
            "tokens": tokens,
            "more": tokens - first,
            "is_open_to_evidence": _least(entry) <= value,
        }
        value = Decimal(1) if 1 < value < 1 + entry.evidence.grid else value - entry.evidence.grid


def tightened(table: AllowanceTable, entry: Entry, value: Decimal) -> AllowanceTable:
    """The table as if `entry` were `value`, and so no entry of larger batches at its EP size above it."""
    lower = [one.ep == entry.ep and one.batch_tokens >= entry.batch_tokens for one in table.entries]
    entries = (
        replace(one, allowance=min(one.allowance, value)) if is_lower else one
        for one, is_lower in zip(table.entries, lower, strict=True)
    )
    return replace(table, entries=tuple(entries))


def _largest(estimator: Estimator, table: AllowanceTable, wave: Wave, budget_bytes: int) -> LargestWave:
    other = Estimator(shape=estimator.shape, table=table, placement=table.placement)
    return other.largest_wave(wave.topology, budget_bytes, shape=wave)


def _least(entry: Entry) -> Decimal:
    """What more batches can lower the entry to at most: what was seen and every floor stay, rounded up."""
    evidence = entry.evidence
    seen = [floor.value for floor in evidence.floors]
    seen += [evidence.observed_max.imbalance] if evidence.observed_max is not None else []
    return min(entry.allowance, ceil_to(max(map(Fraction, seen), default=Fraction(1)), evidence.grid))


def _table(path: Path | None) -> tuple[AllowanceTable, str]:
    found = packaged("allowances.yaml") if path is None else path
    return read_table(found), "the packaged table" if path is None else str(path)


def _float(value: Decimal | None) -> float | None:
    return None if value is None else float(value)
