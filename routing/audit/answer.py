"""What `routing check` answers, as JSON holds it."""

from collections.abc import Iterator, Sequence
from typing import Any

from routing.audit.claims import Comparison, Proposal, unmeasured


def check_answer(table: str, comparisons: Sequence[Comparison], proposals: Sequence[Proposal]) -> dict[str, Any]:
    """One object: what was compared, every batch above its allowance, what could not be compared, what to plan with instead."""
    return {
        "table": table,
        "holds": not any(one.above for one in comparisons),
        "compared": [_compared_row(one) for one in comparisons],
        "exceeded": [row for one in comparisons for row in _exceeded_rows(one)],
        "not_compared": unmeasured(comparisons),
        "proposals": [
            {
                "ep": one.ep,
                "batch_tokens": one.batch_tokens,
                "layer": one.layer,
                "allowance": float(one.allowance),
                "proposed": float(one.proposed),
                "binds": one.binds,
            }
            for one in proposals
        ],
    }


def _compared_row(one: Comparison) -> dict[str, Any]:
    entry, worst = one.entry, one.worst
    return {
        "run": one.identity.run,
        "label": one.identity.label,
        "ep": entry.ep,
        "batch_tokens": entry.batch_tokens,
        "layer": entry.layer,
        "allowance": float(entry.allowance),
        "status": entry.status,
        "num_batches": one.num_batches,
        "num_above": len(one.above),
        "worst_imbalance": worst.ratio(entry.ep) if worst else None,
        "worst_layer": worst.layer if worst else None,
        "worst_batch": worst.batch if worst else None,
        "worst_rank": worst.rank if worst else None,
        "outcome": one.outcome,
    }


def _exceeded_rows(one: Comparison) -> Iterator[dict[str, Any]]:
    for above in one.above:
        yield {
            "run": one.identity.run,
            "policy": one.identity.label,
            "ep": one.entry.ep,
            "batch_tokens": one.entry.batch_tokens,
            "allowance_layer": one.entry.layer,
            "allowance": float(one.entry.allowance),
            "layer": above.worst.layer,
            "batch": above.worst.batch,
            "rank": above.worst.rank,
            "factor": above.worst.ratio(one.entry.ep),
            "layers_above": above.num_layers,
        }
