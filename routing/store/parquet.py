"""Parquet files as a run's parts are written."""

from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from routing.store.files import write_atomically


def write_parquet(path: Path, table: pa.Table, *, row_group_rows: int) -> None:
    """One Parquet file: zstd, page checksums, `row_group_rows` rows a group (at least one)."""

    def write(stream: IO[bytes]) -> None:
        pq.write_table(table, stream, compression="zstd", row_group_size=max(1, row_group_rows), write_page_checksum=True)

    write_atomically(path, write)
