"""The hash of what a run counted, however it is stored."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from routing.core.errors import DamagedDataError
from routing.store.run import Run

_HASHED = ("layer", "expert", "routed_rows")


def require_content(run: Run) -> None:
    """DamagedDataError where a finished run's loads are not those that its content hash was taken over."""
    if run.manifest.state == "finished" and content_hash(run) != run.manifest.content_hash:
        raise DamagedDataError(
            f"{run.folder}: not the loads that were measured (their content hash is another); measure this run again"
        )


def content_hash(run: Run) -> str:
    """sha256 over the loads, whatever the parts, their order or the row groups.

    For each segment in the order of segment_hash: its hash, then sha256 of the sha256 of its layer, its expert and its
    routed_rows column (int32 little-endian, sorted by layer and expert). Reads one row group at a time. Two runs of one
    --segment-tokens that counted the same rows for the same tokens have the same content hash. DamagedDataError where two
    parts hold a segment with different rows, or one holds a segment that the run does not have.
    """
    segments = run.read("segments")
    hashes = dict(zip(segments["segment_id"].to_pylist(), segments["segment_hash"].to_pylist(), strict=True))
    digests: dict[str, bytes] = {}
    for path in run.part_paths("loads"):
        for segment_id, digest in _segment_digests(path):
            if segment_id not in hashes:
                raise DamagedDataError(f"{path}: loads of segment {segment_id}, which the run does not have")
            name = hashes[segment_id]
            if digests.setdefault(name, digest) != digest:
                raise DamagedDataError(f"{path}: segment {segment_id} was counted twice with different rows")
    total = hashlib.sha256()
    for name in sorted(digests):
        total.update(bytes.fromhex(name) + digests[name])
    return total.hexdigest()


def _segment_digests(path: Path) -> Iterator[tuple[int, bytes]]:
    """(segment, digest of its three columns); neighbouring row groups may share a segment."""
    current: int | None = None
    digests = [hashlib.sha256() for _ in _HASHED]
    for segment_id, slices in _segment_slices(path):
        if current not in (None, segment_id):
            yield current, _joined(digests)
            digests = [hashlib.sha256() for _ in _HASHED]
        current = segment_id
        for digest, column in zip(digests, slices, strict=True):
            digest.update(column)
    if current is not None:
        yield current, _joined(digests)


def _joined(digests: "list[hashlib._Hash]") -> bytes:
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).digest()


def _segment_slices(path: Path) -> Iterator[tuple[int, list[memoryview]]]:
    """The bytes of each column of _HASHED for every run of one segment id inside a row group."""
    reader = pq.ParquetFile(os.path.abspath(path))
    for group in range(reader.num_row_groups):
        table = reader.read_row_group(group)
        columns = [table[name].combine_chunks() for name in _HASHED]
        runs = pc.run_end_encode(table["segment_id"].combine_chunks())
        start = 0
        for segment_id, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield (
                segment_id,
                [memoryview(one.buffers()[1])[4 * (one.offset + start) : 4 * (one.offset + end)] for one in columns],
            )
            start = end
