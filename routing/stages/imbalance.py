"""`routing imbalance`: finished runs in, worst-layer imbalances out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.core.observed import Caution
from routing.core.placement import CONTIGUOUS, Placement, default_ep_sizes, valid_ep_sizes
from routing.stages.kept import kept_imbalance_rows
from routing.store.run import Run, open_run


@dataclass(frozen=True, kw_only=True, slots=True)
class ImbalanceAnswer:
    """`rows` as `routing imbalance --json` gives them; `warnings` one line each."""

    rows: list[dict[str, Any]]
    warnings: tuple[str, ...]


def imbalance(
    folders: Sequence[Path],
    *,
    eps: tuple[int, ...] | None,
    batch_sizes: Sequence[int],
    view: str,
    order: str | int,
    by_layer: bool,
    placement: Placement = CONTIGUOUS,
) -> ImbalanceAnswer:
    """One row per run, EP size and batch size (and layer); runs are never summed."""
    rows: list[dict[str, Any]] = []
    warnings: list[str] = []
    for run in open_distinct(folders):
        sizes, left_out = ep_sizes_of(run, eps, placement)
        found, cautions = kept_imbalance_rows(
            run, eps=sizes, batch_sizes=batch_sizes, view=view, order=order, by_layer=by_layer, placement=placement
        )
        rows.extend(found)
        warnings.extend([*run.notices, *left_out, *as_lines(cautions)])
    return ImbalanceAnswer(rows=rows, warnings=tuple(dict.fromkeys(warnings)))


def open_distinct(folders: Sequence[Path]) -> list[Run]:
    """Every run opened and verified before anything is said of any; InputError where one is named twice."""
    resolved = [Path(os.path.realpath(folder)) for folder in folders]
    twice = next((folder for place, folder in enumerate(resolved) if folder in resolved[:place]), None)
    if twice is not None:
        raise InputError(f"{twice.name}: the run is named twice")
    return [open_run(folder) for folder in folders]


def ep_sizes_of(
    run: Run, eps: tuple[int, ...] | None, placement: Placement = CONTIGUOUS
) -> tuple[tuple[int, ...], list[str]]:
    """(the sizes asked for, or a placement file's own, or those of 2, 4, 8 that divide the experts; a warning of the rest)."""
    num_experts = run.manifest.shape.num_experts
    if eps is not None:
        return eps, []
    if placement.file is not None:
        return (placement.file.ep,), []
    fitting, left_out = default_ep_sizes(num_experts)
    if not fitting:
        known = ", ".join(map(str, valid_ep_sizes(num_experts)))
        raise InputError(f"{run.folder}: none of EP 2, 4, 8 divides {num_experts} experts; ask for one that does: --ep {known}")
    named = [f"{run.folder}: EP {', '.join(map(str, left_out))} left out, not dividing {num_experts} experts"] if left_out else []
    return fitting, named


def as_lines(cautions: Sequence[Caution]) -> list[str]:
    """`code: message`, for stderr."""
    return [f"{one.code}: {one.message}" for one in cautions]
