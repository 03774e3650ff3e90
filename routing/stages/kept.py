"""Imbalances that were asked for before, taken from the run's `cache/` instead of being counted again."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from routing.core.observed import Caution
from routing.core.placement import CONTIGUOUS, Placement
from routing.query.batches import CORPUS_ORDER, Order
from routing.query.imbalance import imbalance_rows
from routing.stages.provenance import code_hash
from routing.store.rollup import keep_decoded, keep_rollup, manifest_hash, read_rollup
from routing.store.run import Run

_KIND = "imbalance"
_ANSWERING = ("core", "query")  # what decides an answer, beside the run


def kept_imbalance_rows(
    run: Run,
    *,
    eps: Sequence[int],
    batch_sizes: Sequence[int],
    view: str = "packed",
    order: Order = CORPUS_ORDER,
    by_layer: bool = False,
    placement: Placement = CONTIGUOUS,
) -> tuple[list[dict[str, Any]], tuple[Caution, ...]]:
    """`imbalance_rows` of an opened run, answered from its cache where this very question was answered before.

    Valid for one manifest (which has every part's sha256), one program (a hash of its source) and the run's name. Only answers
    are kept, never a refusal.
    """
    question = {"run": run.name, "eps": list(eps), "batch_sizes": list(batch_sizes), "view": view, "order": order}
    question |= {"by_layer": by_layer, "placement": placement.name}
    made_from = hashlib.sha256(f"{manifest_hash(run.manifest)} {program_hash()}".encode()).hexdigest()
    kept = read_rollup(run.folder, _KIND, made_from=made_from, question=question)
    if kept is not None:
        return kept["rows"], tuple(Caution(**one) for one in kept["cautions"])
    rows, cautions = imbalance_rows(
        run, eps=eps, batch_sizes=batch_sizes, view=view, order=order, by_layer=by_layer, placement=placement
    )
    value = {"rows": rows, "cautions": [asdict(one) for one in cautions]}
    keep_rollup(run.folder, _KIND, made_from=made_from, question=question, value=value)
    keep_decoded(run.folder, run.manifest)
    return rows, cautions


@functools.cache
def program_hash() -> str:
    """sha256 over the code that answers and the engine's version: another program's answer is not taken for its own."""
    return hashlib.sha256(f"{code_hash(_ANSWERING)} {version('duckdb')}".encode()).hexdigest()
