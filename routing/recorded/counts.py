"""Tables of counts, (unit, layer, expert, routed_rows), to dense loads by unit: U units, L layers, E experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.core.errors import CheckFailedError, InputError
from routing.recorded.faults import require_layers_differ

COLUMNS = ("layer", "expert", "routed_rows")
MAX_ROWS = 2**31 - 1  # of one expert in one unit, as the store holds them

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class CountTable:
    """One file's columns, int64 and of one length; `units` are names. `num_tokens` is null where the file has no such column."""

    units: tuple[str, ...]
    layer: Integers
    expert: Integers
    routed_rows: Integers
    num_tokens: Integers | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitCounts:
    """One unit's routed rows [L, E] over `num_tokens` tokens."""

    unit: str
    num_tokens: int
    loads_LE: npt.NDArray[np.int32]


def read_count_table(path: Path, *, is_parquet: bool, name: str) -> CountTable:
    """The table of a CSV or Parquet file; InputError names the column that is missing or no whole number."""
    import pyarrow as pa

    try:
        table = _read(path, is_parquet=is_parquet)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: no table of counts: {' '.join(str(error).split())[:120]}") from None
    twice = [column for column in (*COLUMNS, "unit", "num_tokens") if names.count(column) > 1]
    if twice:
        raise InputError(f"{name}: column {twice[0]} is there {names.count(twice[0])} times")
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}; a table of counts has unit, {', '.join(COLUMNS)}")
    columns = {column: _integers(table, column, name) for column in COLUMNS}
    units = table["unit"].to_pylist() if "unit" in names else ["0"] * table.num_rows
    if any(unit is None for unit in units):
        raise InputError(f"{name}: a row without a unit")
    num_tokens = _integers(table, "num_tokens", name) if "num_tokens" in names else None
    return CountTable(units=tuple(map(str, units)), num_tokens=num_tokens, **columns)


def _read(path: Path, *, is_parquet: bool) -> Any:
    if is_parquet:
        import pyarrow.parquet as pq

        return pq.ParquetFile(path).read()
    import pyarrow as pa
    from pyarrow import csv

    # Columns that must be whole numbers; a unit keeps its leading zeros.
    kinds = {column: pa.int64() for column in (*COLUMNS, "num_tokens")} | {"unit": pa.string()}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds))


def _integers(table: Any, column: str, name: str) -> Integers:
    import pyarrow as pa

    values = table[column]
    if not pa.types.is_integer(values.type) or values.null_count:
        raise InputError(f"{name}: column {column} holds {values.type} values or nulls, not whole numbers")
    found: Integers = values.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def dense_units(
    table: CountTable, *, num_tokens: int | None, top_k: int, num_experts: int | None, name: str
) -> tuple[tuple[int, ...], tuple[UnitCounts, ...]]:
    """(layers, units in file order); an expert without a row has none, which the sum proves: top-k rows a token in every layer.

    InputError for a table that leaves something open, CheckFailedError naming unit and layer where the counts can't be true.
    """
    if not table.units:
        raise InputError(f"{name}: no rows")
    names = list(dict.fromkeys(table.units))
    layers, layer_place = np.unique(table.layer, return_inverse=True)
    experts = _num_experts(table, len(names) * len(layers), num_experts, name)
    place = {unit: index for index, unit in enumerate(names)}
    unit_place = np.array([place[unit] for unit in table.units], dtype=np.int64)
    cell = (unit_place * len(layers) + layer_place) * experts + table.expert
    _require_cells(table, cell, name)
    loads_ULE: Integers = np.zeros((len(names), len(layers), experts), dtype=np.int64)
    loads_ULE.reshape(-1)[cell] = table.routed_rows
    tokens_U = _unit_tokens(table, unit_place, names, num_tokens, name)
    _require_conserved(loads_ULE, tokens_U, names, layers.tolist(), top_k, name)
    units = tuple(
        UnitCounts(unit=unit, num_tokens=int(tokens), loads_LE=loads.astype(np.int32))
        for unit, tokens, loads in zip(names, tokens_U, loads_ULE, strict=True)
    )
    require_distinct_layers(units, layers.tolist(), top_k=top_k)
    return tuple(layers.tolist()), units


def require_distinct_layers(units: Sequence[UnitCounts], layers: Sequence[int], *, top_k: int) -> None:
    """CheckFailedError where two layers hold the same counts in every unit."""
    digests = {layer: b"".join(unit.loads_LE[place].tobytes() for unit in units) for place, layer in enumerate(layers)}
    num_tokens, num_experts = sum(unit.num_tokens for unit in units), units[0].loads_LE.shape[1]
    require_layers_differ(digests, num_tokens=num_tokens, num_experts=num_experts, top_k=top_k)


def _num_experts(table: CountTable, num_grids: int, given: int | None, name: str) -> int:
    most = int(table.expert.max()) + 1
    if given is None and len(table.expert) < num_grids * most:
        raise InputError(f"{name}: not every expert has a row, so the last ones may be missing; say how many: --num-experts")
    if given is not None and most > given:
        raise InputError(f"{name}: expert {most - 1} is beyond {given} experts; a shared expert is no routed one, leave it out")
    return given or most


def _require_cells(table: CountTable, cell: Integers, name: str) -> None:
    for what, bad in (
        ("negative", (table.layer < 0) | (table.expert < 0) | (table.routed_rows < 0)),
        (f"above {MAX_ROWS}", (table.routed_rows > MAX_ROWS) | (table.layer >= 1 << 20)),
    ):
        if bad.any():
            raise InputError(f"{name}: {_row(table, int(np.flatnonzero(bad)[0]))}: {what}")
    ordered = np.argsort(cell, kind="stable")
    twice = np.flatnonzero(np.diff(cell[ordered]) == 0)
    if len(twice):
        raise InputError(f"{name}: {_row(table, int(ordered[twice[0] + 1]))}: given twice")


def _row(table: CountTable, row: int) -> str:
    return f"row {row} (unit {table.units[row][:40]!a}, layer {table.layer[row]}, expert {table.expert[row]})"


def _unit_tokens(table: CountTable, unit_place: Integers, names: list[str], num_tokens: int | None, name: str) -> Integers:
    if table.num_tokens is None:
        if num_tokens is None:
            raise InputError(f"{name}: how many tokens has a unit? --num-tokens N, or a column num_tokens")
        if num_tokens > MAX_ROWS:
            raise InputError(f"--num-tokens: {num_tokens} is above {MAX_ROWS}")
        return np.full(len(names), num_tokens, dtype=np.int64)
    if num_tokens is not None:
        raise InputError(f"{name}: has a column num_tokens; leave --num-tokens out")
    tokens_U = np.zeros(len(names), dtype=np.int64)
    tokens_U[unit_place] = table.num_tokens
    odd = np.flatnonzero(table.num_tokens != tokens_U[unit_place])
    if len(odd):
        raise InputError(f"{name}: {_row(table, int(odd[0]))}: num_tokens differs within the unit")
    beyond = np.flatnonzero(tokens_U > MAX_ROWS)  # times top-k it would pass 64 bits, and a sum wrapped around looks sound
    if len(beyond):
        raise InputError(f"{name}: unit {names[beyond[0]][:40]!a}: {tokens_U[beyond[0]]} tokens, above {MAX_ROWS}")
    return tokens_U


def _require_conserved(
    loads_ULE: Integers, tokens_U: Integers, names: list[str], layers: list[int], top_k: int, name: str
) -> None:
    wanted_U = tokens_U * top_k
    wrong_UL = (loads_ULE.sum(-1) != wanted_U[:, None]) | (loads_ULE > tokens_U[:, None, None]).any(-1) | (tokens_U < 1)[:, None]
    if not wrong_UL.any():
        return
    unit, place = (int(index) for index in np.argwhere(wrong_UL)[0])
    rows, tokens = int(loads_ULE[unit, place].sum()), int(tokens_U[unit])
    where = f"{name}: unit {names[unit][:40]!a}, layer {layers[place]}"
    raise CheckFailedError(
        f"{where}: {rows} routed rows, {tokens} tokens x top-{top_k} are {tokens * top_k}, at most {tokens} an expert"
        f"{_likely(rows, tokens, top_k)}"
    )


def _likely(rows: int, tokens: int, top_k: int) -> str:
    """The known fault that gives just this sum."""
    if rows == 0:
        return "; nothing was recorded here (a dense layer, or one that another layer's slot took)"
    if tokens > 1 and rows == (tokens - 1) * top_k:
        return "; one token less: the last one is missing"
    if rows == tokens * (top_k + 1):
        return "; one row a token more: a shared expert is counted"
    if rows % (tokens * top_k) == 0 and tokens:
        return f"; {rows // (tokens * top_k)} times as many: counted by as many ranks"
    return ""
