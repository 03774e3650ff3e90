"""Parquet files as a run's parts are written."""

from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from routing.core.errors import StorageError
from routing.store.files import sha256_of, write_atomically
from routing.store.manifest import Part
from routing.store.schemas import SCHEMAS

ROW_GROUP_ROWS = 1_048_576  # about; a group holds whole segments


def write_part(path: Path, table: str, rows: pa.Table, *, rows_per_segment: int) -> Part:
    """One part of a run's `table`, on disk whole, and what names it: zstd, page checksums, whole segments a row group."""
    group = max(1, ROW_GROUP_ROWS // rows_per_segment) * rows_per_segment

    def write(stream: IO[bytes]) -> None:
        pq.write_table(
            rows.cast(SCHEMAS[table]), stream, compression="zstd", row_group_size=max(1, group), write_page_checksum=True
        )

    write_atomically(path, write)
    try:
        num_bytes, sha256 = path.stat().st_size, sha256_of(path)
    except OSError as error:
        raise StorageError(f"{path}: written, but not readable again, {error.strerror or error}") from error
    return Part(name=path.name, table=table, num_rows=rows.num_rows, num_bytes=num_bytes, sha256=sha256)
