"""Placement files: read strictly, written whole."""

import json
import os
from pathlib import Path

from routing.core.placement import CONTIGUOUS, PLACEMENT, ROUND_ROBIN, STRIDED, Placement, PlacementFile
from routing.store.files import read_text, require_replaceable, write_bytes


def find_placement(text: str | os.PathLike[str]) -> Placement:
    """`contiguous`, `round-robin`, or the placement in the file of that path; InputError with line and field for what is none."""
    if text == PLACEMENT:
        return CONTIGUOUS
    if text == ROUND_ROBIN:
        return STRIDED
    return Placement(kind="file", file=read_placement(Path(text)))


def read_placement(path: Path) -> PlacementFile:
    """The placement in `path`, YAML or JSON."""
    from routing.store.records import decode_record
    from routing.store.yaml_nodes import read_nodes

    missing = "--placement takes contiguous, round-robin or a file, as routing placement suggest writes one"
    root = read_nodes(read_text(path, what="a placement", missing=missing), where=str(path))
    placement = decode_record(PlacementFile, root, where=str(path))
    assert isinstance(placement, PlacementFile)
    return placement


def write_placement(path: Path, placement: PlacementFile) -> None:
    """Writes JSON, a layer a line; another kind of file in `path` is not replaced."""
    layers = ",\n  ".join(json.dumps({"layer": one.layer, "ranks": one.ranks}) for one in placement.layers)
    require_replaceable(path, what="a placement", marks=(b'"ep":', b'"ranks":'))
    write_bytes(path, f'{{"ep": {placement.ep}, "layers": [\n  {layers}\n]}}\n'.encode())
