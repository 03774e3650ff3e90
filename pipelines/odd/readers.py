"""Readers of files that others write, and small files for each.

`outcome` holds the program to two things, whatever the bytes: it refuses in one line of its own, or it reads what is there.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.odd.oracles import (
    counts_are_right,
    every_row_is_accounted,
    kept_ids,
    log_is_right,
    peaks_are_right,
    placement_is_right,
    routes_are_right,
)
from routing.core.errors import RoutingError
from routing.core.refresh_plan import RefreshPlan
from routing.core.shapes import ModelShape
from routing.corpus.load import load_corpus
from routing.corpus.strict_json import BadLines, read_json_lines
from routing.recorded.counts import dense_units, read_count_table
from routing.recorded.faults import FaultError
from routing.recorded.routes import AskedRepairs, held_to_model
from routing.recorded.rows import read_recorded, sequences
from routing.store.allowances import read_table, table_text
from routing.store.guard_log import read_exceedances
from routing.store.packaged import packaged
from routing.store.peaks import read_peaks
from routing.store.placements import read_placement
from routing.store.records import decode_record
from routing.store.waves import parse_wave, read_wave, wave_text
from routing.store.yaml_nodes import read_nodes

MODEL = ModelShape(num_layers=2, moe_layers=(0, 1), num_experts=4, top_k=2, hidden_size=8, expert_ffn_size=8)
AS_RECORDED = AskedRepairs(layers=None, drop_last=False, fill_prefixes=False, drop_shared_expert=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """`read` a file as the program does; `is_right` tells whether its answer is what the bytes say, by other means."""

    samples: tuple[bytes, ...]
    read: Callable[[Path], Any]
    is_right: Callable[[bytes, Any], bool]


class WordBytes:
    """Stands in for a tokenizer: a conversation is its JSON text, a token a byte."""

    chat_template = "none"

    def __len__(self) -> int:
        return 2**31 - 1

    def apply_chat_template(self, messages: list[Any], **_options: Any) -> str:
        return json.dumps(messages)

    def __call__(self, texts: list[str], **_options: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(text.encode()) for text in texts]}


def outcome(reader: Reader, raw: bytes, path: Path) -> str:
    """`read` or `refused`; AssertionError for a wrong answer or a message of several lines, any other error as it came."""
    path.write_bytes(raw)
    try:
        answer = reader.read(path)
    except RoutingError as error:
        message = str(error)
        assert message, "refused without a word"
        assert "\n" not in message, f"a message of several lines: {message[:200]!r}"
        return "refused"
    assert reader.is_right(raw, answer), f"read otherwise than the bytes say: {answer!s:.2000}"
    return "read"


def _read_ids(path: Path) -> list[tuple[int, list[int]]]:
    corpus = load_corpus([path], tokenizer=WordBytes(), format="token-ids")
    return [(one.source_row, one.token_ids.tolist()) for one in corpus.trajectories]


def _read_chat(path: Path) -> Any:
    return load_corpus([path], tokenizer=WordBytes(), format="openai-chat")


def _read_routes(path: Path) -> list[tuple[list[int], list[Any]]]:
    found = []
    for _, row in read_json_lines(path, BadLines(skip=False), name=path.name):
        for part in sequences(row) if isinstance(row, Mapping) else ():
            try:
                raw = read_recorded(part, num_layers=MODEL.num_layers, top_k=MODEL.top_k)
                recorded = held_to_model(raw, MODEL, AS_RECORDED, Counter())
            except FaultError:
                continue
            found.append((recorded.token_ids.tolist(), recorded.routes.tolist()))
    return found


def _read_counts(path: Path) -> dict[tuple[str, int, int], int]:
    table = read_count_table(path, is_parquet=False, name=path.name)
    layers, units = dense_units(table, num_tokens=None, top_k=1, num_experts=2, name=path.name)
    return {
        (unit.unit, layer, expert): int(rows)
        for unit in units
        for layer, by_expert in zip(layers, unit.loads_LE, strict=True)
        for expert, rows in enumerate(by_expert)
        if rows
    }


def _read_plan(path: Path) -> RefreshPlan:
    plan = decode_record(RefreshPlan, read_nodes(path.read_bytes().decode("utf-8", "replace"), where=path.name), where=path.name)
    assert isinstance(plan, RefreshPlan)
    return plan


def _lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_CHAT = {"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": None, "tool_calls": [_CALL]}]}
_PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "tool", "content": "x"}]}
_EXCEEDED = {
    **{"event": "exceeded", "step": 3, "layer": 1, "rank": 0, "ep": 2, "batch_tokens": 50, "busiest_rows": 80},
    **{"routed_rows": 100, "imbalance": 1.6, "allowance": 1.5, "allowance_batch_tokens": 50, "allowance_layer": "all"},
    **{"placement": "contiguous", "shape_hash": "0" * 64, "table_hash": "1" * 64, "time": "2026-01-01T00:00:00Z"},
}
_WAVE = b"""model: qwen3.6-35b-a3b
topology: {ep: 2, cp: 2}
adapter: {expert_rank: 8}
groups:
- attention_rows: [52480, 44314]
  longest_packed_tokens: 96794
observed: {share: 1.08}
"""
_PLAN = b"""table: a.yaml
ep: [2, 4]
batch_tokens: [2000, 200]
order: corpus
runs:
- out: runs/one
  label: one
  policy: org/name@main
  corpus: [data/*.jsonl]
  max_tokens: 500
"""
_TABLE = packaged("allowances.yaml").read_bytes()
_PEAKS = b"wave,baseline_bytes,peak_bytes,state,source\nw,10,20,cold,me\nv,0,7,warm,\"a, b\"\n"
_COUNTS = b"unit,layer,expert,routed_rows,num_tokens\nu,0,0,3,7\nu,0,1,4,7\nv,0,0,5,5\nv,0,1,0,5\n"

READERS: dict[str, Reader] = {
    "token ids": Reader(
        samples=(
            _lines({"input_ids": [1, 2]}, {"input_ids": [3, 4, 5], "attention_mask": [0, 1, 1]}, {"input_ids": [1, 2]}),
            json.dumps([{"input_ids": [7]}, {"input_ids": [8, 9]}], indent=1).encode(),
        ),
        read=_read_ids,
        is_right=lambda raw, answer: kept_ids(raw) == answer,
    ),
    "conversations": Reader(samples=(_lines(_CHAT, _PARTS, _CHAT),), read=_read_chat, is_right=every_row_is_accounted),
    "recorded routes": Reader(
        samples=(_lines(*({"input_ids": [n, 2], "routed_experts": [[[0, 1], [2, 3]], [[1, 2], [3, 0]]]} for n in range(3))),),
        read=_read_routes,
        is_right=routes_are_right,
    ),
    "counts": Reader(samples=(_COUNTS,), read=_read_counts, is_right=counts_are_right),
    "peaks": Reader(samples=(_PEAKS,), read=read_peaks, is_right=peaks_are_right),
    "guard log": Reader(
        samples=(_lines(_EXCEEDED, {**_EXCEEDED, "step": 4}),), read=read_exceedances, is_right=log_is_right
    ),
    "placement": Reader(
        samples=(_lines({"ep": 2, "layers": [{"layer": 0, "ranks": [0, 1, 1, 0]}, {"layer": 1, "ranks": [0, 0, 1, 1]}]}),),
        read=read_placement,
        is_right=placement_is_right,
    ),
    "wave": Reader(
        samples=(_WAVE,),
        read=read_wave,
        is_right=lambda _raw, answer: parse_wave(wave_text(answer), where="again") == answer,
    ),
    "plan": Reader(samples=(_PLAN,), read=_read_plan, is_right=lambda _raw, answer: bool(answer.runs)),
    # Check digits and hashes vouch for every value: what still reads is the table that was written.
    "allowances": Reader(
        samples=(_TABLE,), read=read_table, is_right=lambda _raw, answer: table_text(answer) == table_text(_written())
    ),
}


def _written() -> Any:
    return read_table(packaged("allowances.yaml"))
