"""Token ids in a `.npy` file: one sequence, or one a row."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from routing.core.errors import InputError, StorageError
from routing.corpus.strict_json import escape

NPY_MAGIC = b"\x93NUMPY"


def npy_rows(path: Path, *, name: str) -> Iterator[tuple[int, object]]:
    """`{"input_ids": integers [T]}` for each row of an array [rows, T], or for the one of an array [T]; mapped, not read whole.

    InputError for damaged bytes, other dimensions and other types; pickled objects are never loaded.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None
    except Exception as error:  # a damaged header surfaces as errors of every kind
        raise InputError(f"{name}: cannot be read as a .npy file: {escape(' '.join(str(error).split()), 100)}") from None
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise InputError(f"{name}: {array.dtype} of shape {array.shape}; token ids are integers [tokens] or [rows, tokens]")
    for row, ids in enumerate(array if array.ndim == 2 else [array]):
        yield row, {"input_ids": np.asarray(ids)}
