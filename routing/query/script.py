"""A run's tables as SQL that a person pastes into DuckDB, in the run's folder: the same queries, their parameters written out.

Batches are cut in Python, since what is counted once a batch depends on what the batch holds already. The script has where each
batch ends, by the step, and says nothing of how that was found.
"""

import math
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from routing.query.batches import CORPUS_ORDER, Batches, Order
from routing.query.tables import TREE_TABLES
from routing.store.run import Run

TABLES = ("block_loads", "rank_loads", "layer_imbalances", "batch_imbalances")
_PARAMETER = re.compile(r"\$(\w+)")
_STEPS = """\
CREATE OR REPLACE TEMP TABLE batches AS
WITH steps AS (
    SELECT paths.segment_id, ROW_NUMBER() OVER (ORDER BY {order}, paths.position) AS step
    FROM paths
    JOIN trajectories USING (trajectory_id)
),
lists(batch_tokens, ends) AS (
    VALUES
{ends}
),
spans AS (
    SELECT
        batch_tokens,
        UNNEST(RANGE(LEN(ends))) AS batch,
        UNNEST(LIST_PREPEND(0, ends[:-2])) AS after_step,
        UNNEST(ends) AS last_step
    FROM lists
)
SELECT spans.batch_tokens, spans.batch::INTEGER AS batch, steps.segment_id, {copies} AS copies
FROM steps
JOIN spans ON steps.step > spans.after_step AND steps.step <= spans.last_step
GROUP BY ALL;
"""


def paste_script(run: Run, batches: Sequence[Batches], *, eps: Sequence[int], view: str, order: Order) -> str:
    """Temporary tables up to `batch_imbalances` from the Parquet files that the manifest lists."""
    num_experts, num_blocks = run.manifest.shape.num_experts, math.lcm(*eps)
    values = {"num_experts": num_experts, "block_experts": num_experts // num_blocks, "num_blocks": num_blocks, "eps": list(eps)}
    parts = [
        f"CREATE OR REPLACE TEMP VIEW {table} AS SELECT DISTINCT * FROM READ_PARQUET({_quoted(run, table)});"
        for table in (*TREE_TABLES, "loads")
    ]
    by = "trajectories.trajectory_id" if order == CORPUS_ORDER else f"SHA256('{order}:' || trajectories.trajectory_hash)"
    ends = ",\n".join(f"        ({one.batch_tokens}, {list(one.ends)}::BIGINT[])" for one in batches if one.ends)
    copies = "1" if view == "packed" else "COUNT(*)"
    made = [f"CREATE OR REPLACE TEMP TABLE {table} AS\n{query_text(table, **values)}" for table in TABLES]
    steps = _STEPS.format(order=by, ends=ends, copies=copies) if ends else "-- no full batch of any size"
    return "\n\n".join(["-- In the run's folder, in DuckDB.", "\n".join(parts), made[0], steps, *made[1:]]) + "\n"


def query_text(name: str, **values: Any) -> str:
    """`sql/NAME.sql` ended by a semicolon, its parameters written out where `values` has them."""
    text = files("routing.query").joinpath(f"sql/{name}.sql").read_text(encoding="utf-8").rstrip()
    return _PARAMETER.sub(lambda found: str(values.get(found[1], found[0])), text) + ";"


def _quoted(run: Run, table: str) -> str:
    names = (path.name.replace("'", "''") for path in run.part_paths(table))
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"
