"""Columns of the four tables of a run; any Parquet engine reads them.

`loads` is dense: every (segment, MoE layer, expert) has a row, zero or not, sorted by the three. `segments` and
`trajectories` are numbered from 0; `paths` lists each trajectory's segments, `position` being the place in that list.
"""

import pyarrow as pa


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name == "parent_segment_id") for name, kind in columns.items()])


SCHEMAS: dict[str, pa.Schema] = {
    "segments": _schema(
        segment_id=pa.int32(),
        parent_segment_id=pa.int32(),  # null at the root
        segment_hash=pa.string(),
        first_position=pa.int32(),
        num_tokens=pa.int32(),
    ),
    "trajectories": _schema(
        trajectory_id=pa.int32(),
        trajectory_hash=pa.string(),
        unit=pa.string(),
        stratum=pa.string(),
        source_file=pa.string(),
        source_row=pa.int32(),
        num_tokens=pa.int32(),
    ),
    "paths": _schema(trajectory_id=pa.int32(), position=pa.int32(), segment_id=pa.int32()),
    "loads": _schema(segment_id=pa.int32(), layer=pa.int32(), expert=pa.int32(), routed_rows=pa.int32()),
}
