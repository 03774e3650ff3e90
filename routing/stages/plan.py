"""`routing measure --plan`: what a measurement would cost, before a weight is loaded or a forward pass spent."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from routing.core.errors import RoutingError
from routing.measure.anchors import find_anchors
from routing.measure.geometry import least_seconds
from routing.measure.plan import PartPlan
from routing.stages.begin import MeasureRequest, Prepared, Progress, existing, prepare, require_same
from routing.stages.corpus_record import counts
from routing.stages.walk import WHOLE, tokens_to_compute
from routing.store.run import MANIFEST_NAME, part_name, read_manifest, require_run_name
from routing.store.worker_parts import gather

# Bytes a row of `loads` takes on disk, zstd: 1.12 measured over 1,994,752 rows (docs/LOG.md).
LOADS_BYTES_PER_ROW = 1.2


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasurePlan:
    """What a measurement would cost, known before a forward pass; `tokens_computed` is of whole trajectories, the most."""

    run: str
    tokens_logical: int
    tokens_packed: int
    tokens_computed: int
    segments: int
    trajectories: int
    refused: int
    layers: int
    experts: int
    top_k: int
    parts: int
    parts_done: int
    disk_bytes: int
    expected_s: float
    expected_from: str


def plan(request: MeasureRequest, progress: Progress) -> MeasurePlan:
    """What `measure` would do, without loading a weight."""
    require_run_name(request.out)
    prepared = prepare(request, progress)
    shape, done = prepared.files.shape, existing(request.out)
    if done is not None:
        require_same(request.out, done, prepared.manifest)
    kept = {part.name for part in gather(request.out, done).manifest.parts} if done else set()
    missing = [part for part in prepared.parts if part_name("loads", part.index) not in kept]
    tokens_computed = tokens_to_compute(missing, prepared.tree, None)
    rows = len(prepared.tree.segments) * len(shape.moe_layers) * shape.num_experts
    expected_s, expected_from = _expected(request.out, prepared, missing)
    return MeasurePlan(
        **counts(request.out, prepared.manifest),
        tokens_computed=tokens_computed,
        parts=len(prepared.parts),
        parts_done=len(prepared.parts) - len(missing),
        disk_bytes=int(rows * LOADS_BYTES_PER_ROW),
        expected_s=expected_s,
        expected_from=expected_from,
    )


def _expected(out: Path, prepared: Prepared, missing: Sequence[PartPlan]) -> tuple[float, str]:
    """Seconds and whence: an earlier run of the same weights on the same device beside `out`, else the least they can be."""
    wanted = prepared.manifest
    for path in sorted(out.parent.glob(f"*/{MANIFEST_NAME}")):
        try:
            found = read_manifest(path.parent)
        except RoutingError:
            continue  # a damaged neighbour is no reason to refuse a plan
        same = all(getattr(found.settings, name) == getattr(wanted.settings, name) for name in ("device_name", "dtype"))
        if (
            same
            and found.state == "finished"
            and found.planned_tokens
            and found.policy.weights_sha256 == wanted.policy.weights_sha256
        ):
            anchors = None if found.settings.walk == WHOLE else find_anchors(prepared.tree, prepared.parts)
            tokens_computed = tokens_to_compute(missing, prepared.tree, anchors)
            return round(tokens_computed * found.elapsed_s / found.planned_tokens, 1), f"the speed of {path.parent.name}"
    geometry, anchors = prepared.files.geometry, find_anchors(prepared.tree, prepared.parts)
    tokens_computed = tokens_to_compute(missing, prepared.tree, anchors)  # whether the cache carries them isn't known yet
    seconds, flops = least_seconds(geometry, tokens_computed, device=prepared.device, dtype=prepared.dtype)
    arithmetic = f"{geometry.active_parameters:,} active parameters at the {flops / 1e9:,.0f} GFLOP/s of a matrix product here"
    return round(seconds, 1), f"at least this, the arithmetic alone: {arithmetic}; no earlier run to take a speed from"
