"""The files that hold recorded routes, told apart by content, each as the rows that it holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core.errors import InputError
from routing.corpus.containers import check_readable, open_container
from routing.corpus.documents import RefusedError
from routing.corpus.files import distinct_names
from routing.corpus.formats.art import ART_JSON_KEY, ART_JSON_KEYS, stored_trajectory
from routing.corpus.strict_json import BadLines, printable
from routing.recorded.arrays import array_rows, is_npz, is_safetensors, read_npz, read_safetensors
from routing.recorded.rows import ROW_KEYS

Row = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file by the short name that its trajectories carry; `rows` are read once."""

    name: str
    path: Path
    format: str
    rows: Iterator[Row]


def route_sources(paths: Sequence[Path]) -> Iterator[Source]:
    """Each file when its turn comes; InputError where it is of no known kind, StorageError where it can't be read."""
    for name, path in zip(distinct_names(list(map(str, paths))), paths, strict=True):
        shown = printable(str(path))
        if path.is_file() and path.stat().st_size and is_npz(path):
            yield Source(name=name, path=path, format="npz", rows=enumerate(array_rows(read_npz(path, name=shown), name=shown)))
        elif path.is_file() and path.stat().st_size and is_safetensors(path):
            arrays = read_safetensors(path, name=shown)
            yield Source(name=name, path=path, format="safetensors", rows=enumerate(array_rows(arrays, name=shown)))
        else:
            check_readable(path, name=shown)
            container = open_container(path, BadLines(skip=False), name=shown, columns=(*ROW_KEYS, *ART_JSON_KEYS))
            if container is None or container.kind in ("text", "npy"):  # neither holds ids beside routes
                raise InputError(f"{shown}: no recorded routes (.npz, safetensors, Parquet or JSON); see docs/recorded.md")
            yield Source(name=name, path=path, format=container.kind, rows=_mappings(container.rows, shown))


def _mappings(rows: Iterator[tuple[int, object]], name: str) -> Iterator[Row]:
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"{name}: row {place} is no object")
        yield place, _as_art(row, f"{name}: row {place}") if ART_JSON_KEY in row else row


def _as_art(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The trajectory that a Parquet file of ART holds as JSON text; of an empty group one without Choices."""
    try:
        trajectory = stored_trajectory(row)
    except RefusedError as refusal:
        if refusal.reason != "empty":
            raise InputError(f"{where}: {refusal.detail}") from None
        trajectory = {"trajectories": []}
    if not isinstance(trajectory, Mapping):
        raise InputError(f"{where}: '{ART_JSON_KEY}' is no JSON object")
    return trajectory
