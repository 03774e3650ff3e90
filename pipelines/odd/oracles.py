"""What an independent reader makes of the same bytes: the standard library alone and the rules of docs/formats.md."""

import csv
import io
import json
import math
import re
from dataclasses import asdict
from decimal import Decimal
from typing import Any

BOM = b"\xef\xbb\xbf"


class UnreadableError(Exception):
    """The independent reader's word for bytes that hold no rows."""


def strict_values(raw: bytes) -> list[tuple[int, Any]]:
    """(row, value) of JSON Lines, or of one JSON value, by the json module alone and the rules of docs/formats.md."""
    body = raw.removeprefix(BOM)
    lines = [line.strip(b" \t\r") for line in body.split(b"\n")]
    lines = [line for line in lines if line]
    if body.lstrip(b" \t\r\n")[:1] == b"{":
        try:
            return list(enumerate(map(_strict, lines)))
        except UnreadableError:
            pass
    whole = _strict(body)
    return list(enumerate(whole)) if isinstance(whole, list) else [(0, whole)]


def _strict(raw: bytes) -> Any:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise UnreadableError("a key twice")
        return dict(pairs)

    def no_constant(name: str) -> None:
        raise UnreadableError(name)

    try:
        value = json.loads(raw.decode(), object_pairs_hook=distinct, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str) and ("\0" in one or re.search("[\ud800-\udfff]", one)):
            raise UnreadableError("a string that is no text")
        elif isinstance(one, float) and math.isinf(one):
            raise UnreadableError("a number beyond floats")
    return value


def kept_ids(raw: bytes) -> list[tuple[int, list[int]]]:
    """(row, token ids) of every row of ids that a corpus keeps: what the mask leaves, ids below 2^31 - 1, once each."""
    kept: list[tuple[int, list[int]]] = []
    for place, row in strict_values(raw):
        ids, mask = (row.get("input_ids"), row.get("attention_mask")) if isinstance(row, dict) else (None, None)
        if not isinstance(ids, list) or any(type(one) is not int for one in ids):
            continue
        if mask is not None:
            if not isinstance(mask, list) or len(mask) != len(ids) or any(bit not in (0, 1) for bit in mask):
                continue
            ids = [one for one, bit in zip(ids, mask, strict=True) if bit]
        if ids and all(0 <= one < 2**31 - 1 for one in ids) and ids not in [found for _, found in kept]:
            kept.append((place, ids))
    return kept


def every_row_is_accounted(raw: bytes, corpus: Any) -> bool:
    """Every row of the file was kept or refused, under its own number, and the counts add up."""
    (file,) = corpus.files
    places = {one.source_row for one in (*corpus.trajectories, *corpus.refusals)}
    return len(strict_values(raw)) == file.rows == file.kept + file.refused and places == set(range(file.rows))


def routes_are_right(raw: bytes, answer: list[tuple[list[int], list[Any]]]) -> bool:
    """Every sequence that is kept stands in the file so, with two experts of four for each token and layer."""
    rows = [_strict(line) for line in raw.removeprefix(BOM).split(b"\n") if line.strip(b" \t\r")]
    written = [(row["input_ids"], row["routed_experts"]) for row in rows if isinstance(row, dict) and _has_routes(row)]
    sound = all(
        len(ids) == len(routes) and all(len(set(pair)) == 2 and set(pair) <= {0, 1, 2, 3} for token in routes for pair in token)
        for ids, routes in answer
    )
    return sound and all(one in written for one in answer)


def _has_routes(row: dict[str, Any]) -> bool:
    return isinstance(row.get("input_ids"), list) and isinstance(row.get("routed_experts"), list)


def counts_are_right(raw: bytes, answer: dict[tuple[str, int, int], int]) -> bool:
    """`answer` holds the routed rows by (unit, layer, expert) that the CSV has, zeros left out."""
    lines = [line for line in re.split("[\r\n]+", raw.decode().removeprefix("\ufeff")) if line]
    rows = list(csv.DictReader(lines))
    named = [(row.get("unit", "0"), int(row["layer"]), int(row["expert"]), int(row["routed_rows"])) for row in rows]
    return answer == {(unit, layer, expert): count for unit, layer, expert, count in named if count}


def peaks_are_right(raw: bytes, answer: tuple[Any, ...]) -> bool:
    """Every row of the CSV of peaks is there, cell by cell, bytes as whole numbers."""
    rows = list(csv.DictReader(io.StringIO(raw.decode(), newline="")))
    return [{name: str(value) for name, value in asdict(one).items()} for one in answer] == [
        {name: str(int(cell)) if name.endswith("_bytes") else cell for name, cell in row.items()} for row in rows
    ]


def log_is_right(raw: bytes, answer: tuple[Any, ...]) -> bool:
    """Every line of a guard's log that is not blank is there, with the fields that it says."""
    lines = [line for line in raw.decode().split("\n") if line.strip()]
    return len(lines) == len(answer) and all(
        _same_where_json(line.encode(), asdict(one)) for line, one in zip(lines, answer, strict=True)
    )


def placement_is_right(raw: bytes, answer: Any) -> bool:
    """A placement file's EP size and the ranks of each layer are there as written, where it is JSON."""
    layers = [{"layer": one.layer, "ranks": list(one.ranks)} for one in answer.layers]
    return _same_where_json(raw, {"ep": answer.ep, "layers": layers})


def _same_where_json(raw: bytes, answer: dict[str, Any]) -> bool:
    """YAML says more than JSON can; where it is JSON, it says the same."""
    try:
        body = json.loads(raw.decode(), parse_float=Decimal)
    except ValueError:
        return True
    return bool({**answer, **body} == answer)
