"""A run's steps and loads as arrays, for whoever resamples them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from routing.query.imbalance import Tabulated
from routing.query.runner import ask, run_sql


def segment_loads(tables: Tabulated, *, eps: Sequence[int], layers: Sequence[int]) -> dict[str, Any]:
    """The columns of `fit.counts.Counts`; blocks are the lcm of `eps`, in the order of the placement."""
    rows = ask(tables.con, "sql/trajectories.sql")
    units, strata = [row["unit"] for row in rows], [row["stratum"] for row in rows]
    unit_names, units_T = np.unique(units, return_inverse=True)
    stratum_names, strata_T = np.unique(strata, return_inverse=True)
    routed_rows = run_sql(tables.con, "sql/segment_blocks.sql").fetchnumpy()["routed_rows"]
    return {
        "trajectory_ids": tables.steps.trajectory_ids,
        "segment_ids": tables.steps.segment_ids,
        "num_tokens": tables.steps.num_tokens,
        "units_T": units_T.astype(np.int64),
        "strata_T": strata_T.astype(np.int64),
        "unit_names": tuple(unit_names.tolist()),
        "stratum_names": tuple(stratum_names.tolist()),
        "layers": tuple(layers),
        "is_strided": tables.placement.kind == "round-robin",
        "loads_SBL": routed_rows.astype(np.float64).reshape(-1, math.lcm(*eps), len(layers)),
    }
