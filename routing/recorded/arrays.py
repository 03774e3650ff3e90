"""Rows of `.npz` and safetensors files: one sequence, a padded batch, sequences end to end, or several under names."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.errors import InputError
from routing.recorded.rows import MASK_KEY, ROUTES_KEYS, ROW_KEYS, WHOLE_KEYS

Arrays = Mapping[str, npt.NDArray[Any]]
_LENGTHS = "lengths"
_MAX_HEADER_BYTES = 10**8


def is_npz(path: Path) -> bool:
    """Whether the file is a zip of `.npy` members; a torch file is a zip too."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False
    return bool(names) and all(name.endswith(".npy") for name in names)


def is_safetensors(path: Path) -> bool:
    """Whether the file opens with the length of a JSON object and the object."""
    with path.open("rb") as file:
        head = file.read(9)
    most = min(_MAX_HEADER_BYTES, path.stat().st_size)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < most


def read_npz(path: Path, *, name: str) -> Arrays:
    """Every array of the file; InputError where one needs Python objects (a pickle) or can't be read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{name}: no .npz of plain arrays: {' '.join(str(error).split())[:100]}") from None


def read_safetensors(path: Path, *, name: str) -> Arrays:
    """Every tensor of the file as a NumPy array."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, TypeError, KeyError) as error:
        raise InputError(f"{name}: no safetensors file of whole numbers: {' '.join(str(error).split())[:100]}") from None


def array_rows(arrays: Arrays, *, name: str) -> Iterator[Mapping[str, Any]]:
    """One mapping a sequence, with the keys of `routing.recorded.rows`; InputError where there are no routes.

    `NAME.routed_experts` beside `NAME.input_ids` is sequence NAME. Routes [B, T, L, K] need `attention_mask` [B, T]; routes of
    sequences end to end need their `lengths` [N].
    """
    groups: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        group, _, last = key.rpartition(".")
        if last in (*ROW_KEYS, _LENGTHS):
            groups.setdefault(group, {})[last] = array
    groups = {group: held for group, held in groups.items() if any(key in held for key in ROUTES_KEYS)}
    if not groups:
        raise InputError(f"{name}: no array named {', '.join(ROUTES_KEYS)}; it has {', '.join(list(arrays)[:6])}"[:300])
    for held in groups.values():
        yield from _group_rows(held, name=name)


def _group_rows(held: Mapping[str, npt.NDArray[Any]], *, name: str) -> Iterator[Mapping[str, Any]]:
    routes_key = next(key for key in ROUTES_KEYS if key in held)
    routes = held[routes_key]
    whole = next((held[key] for key in WHOLE_KEYS if key in held), None)
    if routes.ndim == 4 or _LENGTHS in held:
        _require_alike(held, name=name)
    mask = held.get(MASK_KEY)
    if routes.ndim == 4:
        if mask is None or whole is None or not (whole.shape == mask.shape == routes.shape[:2]):
            shape = list(routes.shape[:2])
            raise InputError(f"{name}: routes of a batch need token ids and {MASK_KEY} of shape {shape}: padding is no token")
        for ids, row_mask, row_routes in zip(whole, mask, routes, strict=True):
            yield {"input_ids": ids, MASK_KEY: row_mask, routes_key: row_routes}
    elif _LENGTHS in held:
        lengths = held[_LENGTHS]
        negative = np.flatnonzero(lengths < 0)
        if len(negative):
            raise InputError(f"{name}: {_LENGTHS} holds {lengths.flat[negative[0]]} at {negative[0]}; a length is 0 or more")
        ends = np.cumsum(lengths, dtype=np.int64)
        if whole is None or not len(ends) or not ends[-1] == len(whole) == len(routes):
            total = ends[-1] if len(ends) else 0
            raise InputError(f"{name}: {_LENGTHS} sum to {total}, for {len(routes)} rows of routes")
        if mask is not None and mask.shape != whole.shape:
            raise InputError(f"{name}: {MASK_KEY} of shape {list(mask.shape)} beside {len(whole)} ids"[:300])
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            row_mask = None if mask is None else mask[start:end]
            yield {"input_ids": whole[start:end], MASK_KEY: row_mask, routes_key: routes[start:end]}
    else:
        yield {key: int(array) if array.ndim == 0 and array.dtype.kind in "iu" else array for key, array in held.items()}


def _require_alike(held: Mapping[str, npt.NDArray[Any]], *, name: str) -> None:
    """InputError where the arrays of several sequences have one meaning under two names and differ."""
    for keys in (ROUTES_KEYS, WHOLE_KEYS):
        first, *others = [key for key in keys if key in held] or [""]
        for other in others:
            if not np.array_equal(held[first], held[other]):
                raise InputError(f"{name}: {first} and {other} differ; leave out what is not meant")
