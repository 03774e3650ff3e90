"""Rows of Parquet files, Arrow files and data sets of `datasets`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from routing.core.errors import InputError, StorageError
from routing.corpus.strict_json import escape

_ROWS_AT_ONCE = 64

Rows = Iterator[tuple[int, object]]


def parquet_rows(path: Path, *, name: str, wanted: Sequence[str]) -> Rows | None:
    """(0-based row, object) of a Parquet file, read a few at a time; None where it has none of `wanted` as a column."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(os.path.abspath(path))
        names = file.schema_arrow.names
    except Exception as error:  # damaged bytes surface as errors of every kind, here and below
        raise _unreadable(name, "Parquet", error) from None
    columns = _present(names, wanted, name=name)
    if not columns:
        return None

    def batches() -> Iterator[Any]:
        try:
            yield from file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns)
        except Exception as error:
            raise _unreadable(name, "Parquet", error) from None

    return _rows(batches(), name=name)


def arrow_rows(path: Path, *, is_file: bool, name: str, wanted: Sequence[str]) -> Rows | None:
    """The same of an Arrow IPC file, or stream as `datasets` writes it."""
    import pyarrow as pa

    try:
        source = pa.memory_map(str(path))
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        names = reader.schema.names
    except Exception as error:
        raise _unreadable(name, "Arrow", error) from None
    columns = _present(names, wanted, name=name)
    if not columns:
        return None

    def batches() -> Iterator[Any]:
        try:
            whole = (reader.get_batch(index) for index in range(reader.num_record_batches)) if is_file else reader
            for batch in whole:
                narrow = batch.select(columns)
                for start in range(0, narrow.num_rows, _ROWS_AT_ONCE):
                    yield narrow.slice(start, _ROWS_AT_ONCE)
        except Exception as error:
            raise _unreadable(name, "Arrow", error) from None

    return _rows(batches(), name=name)


def is_saved_dataset(path: Path, *, name: str) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote the directory."""
    try:
        return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
    except OSError as error:
        raise StorageError(f"{name}: cannot read: {error.strerror}") from None


def dataset_rows(path: Path, *, name: str, wanted: Sequence[str]) -> Rows | None:
    """The same of a directory that `datasets` saved, or of a hub data set's files; splits follow each other as listed."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name}: reading a dataset needs the package `datasets`; install it or pass its files") from None
    is_saved = is_saved_dataset(path, name=name)
    kind = "a saved dataset" if is_saved else "a dataset (name one of its files, org/name@revision/path)"
    try:
        # streaming: a hub data set is read where it lies, without a converted copy
        loaded = datasets.load_from_disk(str(path)) if is_saved else datasets.load_dataset(str(path), streaming=True)
        splits = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
        columns = [[column for column in split.column_names or () if column in wanted] for split in splits]
    except Exception as error:
        raise _unreadable(name, kind, error) from None
    if not all(columns):
        return None

    def batches() -> Iterator[Any]:
        try:
            for split, present in zip(splits, columns, strict=True):
                yield from split.select_columns(present).with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)
        except Exception as error:
            raise _unreadable(name, kind, error) from None

    return _rows(batches(), name=name)


def _present(names: Sequence[str], wanted: Sequence[str], *, name: str) -> list[str]:
    """Those of a file's columns that are `wanted`; InputError where one is there twice, of which a row would hold the last."""
    columns = [column for column in names if column in wanted]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{name}: has the column '{twice}' twice; write the file with one of them")
    return columns


def _rows(batches: Iterator[Any], *, name: str) -> Rows:
    row = 0
    for batch in batches:
        try:
            batch.validate(full=True)  # Arrow reads where its offsets point, be it outside the file
            values: list[object] = batch.to_pylist()
        except Exception as error:
            raise InputError(f"{name}: row {row} or one of the {_ROWS_AT_ONCE} after it: {_one_line(error)}") from None
        for value in values:
            yield row, value
            row += 1


def _unreadable(name: str, kind: str, error: Exception) -> InputError | StorageError:
    if isinstance(error, OSError) and error.errno:
        return StorageError(f"{name}: cannot read: {error.strerror}")
    return InputError(f"{name}: cannot be read as {kind}: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return escape(" ".join(str(error).split()), 100)
