"""The loads, part by part: is every count there once, does every layer hold top-k rows a token, what does each rank get.

S segments (of a part or of the run), L MoE layers, E experts, R ranks.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from routing.verify.files import Integers, RunFiles, integers, read_part
from routing.verify.finding import Finding, finding
from routing.verify.tree import Tree

_HASHED = ("layer", "expert", "routed_rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """What the loads came to: the rows of every rank by EP size, [S, L, R], and the findings. `repeats` were dropped."""

    ranks: dict[int, Integers]
    findings: tuple[Finding, ...]
    repeats: int


@dataclass(slots=True)
class _Tally:
    """Grows part by part."""

    ranks: dict[int, Integers]
    digests: dict[int, bytes] = field(default_factory=dict)
    num_grid: int = 0
    num_layers: int = 0
    repeats: int = 0
    grid_faults: list[str] = field(default_factory=list)
    conservation_faults: list[str] = field(default_factory=list)
    distinct_faults: list[str] = field(default_factory=list)
    twice_faults: list[str] = field(default_factory=list)


def expert_owners(
    files: RunFiles, eps: Sequence[int], kind: str, *, file_ranks: Mapping[int, Sequence[int]]
) -> dict[int, Integers]:
    """The rank of every expert, [L, E], by EP size: rank 0's experts first, dealt in turn, or by layer as a file has them."""
    layers, num_experts = files.body["shape"]["moe_layers"], files.body["shape"]["num_experts"]
    owners = {}
    for ep in eps:
        if kind == "contiguous":
            rows = [np.repeat(np.arange(ep), num_experts // ep)] * len(layers)
        elif kind == "round-robin":
            rows = [np.tile(np.arange(ep), num_experts // ep)] * len(layers)
        else:
            rows = [np.array(file_ranks[layer]) for layer in layers]
        owners[ep] = np.array(rows, dtype=np.int64)
    return owners


def nested_sizes(eps: Iterable[int]) -> list[tuple[int, int]]:
    """Every (n, m) of `eps` with n below m and dividing it, in rising order."""
    sizes = sorted(eps)
    return [(few, many) for few in sizes for many in sizes if few < many and many % few == 0]


def recount(files: RunFiles, tree: Tree, owners: Mapping[int, Integers]) -> Recount:
    """Counts a run again; `owners` has the rank of every expert by EP size, [L, E]."""
    shape = files.body["shape"]
    layers_L, num_segments = np.array(shape["moe_layers"], dtype=np.int64), len(tree.tokens_S)
    tally = _Tally(ranks={ep: np.zeros((num_segments, len(layers_L), ep), dtype=np.int64) for ep in owners})
    for path in files.loads_paths:
        _add_part(tally, path, tree, layers_L, owners, num_experts=shape["num_experts"], top_k=shape["top_k"])
    missing = [f"segment {one}: no loads" for one in range(num_segments) if one not in tally.digests]
    return Recount(
        ranks=tally.ranks,
        findings=(
            finding("coverage", "segment, layer, expert", tally.num_grid, [*tally.grid_faults, *missing]),
            finding("rows_conserved", "segments and layers", tally.num_layers, tally.conservation_faults),
            finding("experts_distinct", "segments and layers", tally.num_layers, tally.distinct_faults),
            finding("counted_once", "segments", num_segments, tally.twice_faults, is_damage=True),
            *_nested(tally.ranks, owners, layers_L),
            finding("content_hash", "hashes", 1, _content_faults(files, tree, tally.digests), is_damage=True),
        ),
        repeats=tally.repeats,
    )


def _add_part(
    tally: _Tally,
    path: Path,
    tree: Tree,
    layers_L: Integers,
    owners: Mapping[int, Integers],
    *,
    num_experts: int,
    top_k: int,
) -> None:
    table, width = read_part(path), len(layers_L) * num_experts
    segments = integers(table, "segment_id")
    tally.num_grid += len(segments)
    segment_S = segments[::width]
    grid = {
        "segment_id": np.repeat(segment_S, width)[: len(segments)],
        "layer": np.resize(np.repeat(layers_L, num_experts), len(segments)),
        "expert": np.resize(np.arange(num_experts), len(segments)),
    }
    wrong = [place for name, values in grid.items() for place in np.flatnonzero(integers(table, name) != values)[:1].tolist()]
    unknown = np.flatnonzero((segment_S < 0) | (segment_S >= len(tree.tokens_S)))
    if wrong or len(segments) % width or len(unknown):
        row = min([*wrong, *(unknown * width).tolist()], default=len(segments))
        tally.grid_faults.append(f"{path.name}, row {row}: not every expert of every MoE layer of known segments, in order")
        return
    counts_SLE = integers(table, "routed_rows").reshape(-1, len(layers_L), num_experts)
    new_S = np.array(list(_settled(tally, path, segment_S.tolist(), table, width)), dtype=bool)
    segment_S, counts_SLE = segment_S[new_S], counts_SLE[new_S]
    tally.num_layers += len(segment_S) * len(layers_L)
    tally.conservation_faults += _conservation_faults(counts_SLE, segment_S, tree, layers_L, top_k)
    tally.distinct_faults += _distinct_faults(counts_SLE, segment_S, tree, layers_L)
    for ep, ranks_LE in owners.items():
        owned_LER = (ranks_LE[:, :, None] == np.arange(ep)).astype(np.int64)
        tally.ranks[ep][segment_S] = np.einsum("sle,ler->slr", counts_SLE, owned_LER)


def _settled(tally: _Tally, path: Path, segments: list[int], table: pa.Table, width: int) -> Iterator[bool]:
    """Whether each segment is counted for the first time; notes the digest of its three columns, little-endian int32."""
    columns = [integers(table, name).astype("<i4") for name in _HASHED]
    for place, segment in enumerate(segments):
        rows = slice(place * width, (place + 1) * width)
        inner = b"".join(hashlib.sha256(column[rows].tobytes()).digest() for column in columns)
        digest = hashlib.sha256(inner).digest()
        before = tally.digests.setdefault(segment, digest)
        is_new = before is digest
        if not is_new and before != digest:
            tally.twice_faults.append(f"{path.name}: segment {segment} was counted twice with different rows")
        tally.repeats += not is_new and before == digest
        yield is_new


def _conservation_faults(counts_SLE: Integers, segment_S: Integers, tree: Tree, layers_L: Integers, top_k: int) -> Iterator[str]:
    rows_SL, expected_S = counts_SLE.sum(-1), tree.tokens_S[segment_S] * top_k
    for slot, place in np.argwhere(rows_SL != expected_S[:, None]).tolist():
        yield (
            f"segment {segment_S[slot]}, layer {layers_L[place]}: {rows_SL[slot, place]} rows, "
            f"{tree.tokens_S[segment_S[slot]]} tokens x top-{top_k} = {expected_S[slot]}"
        )


def _distinct_faults(counts_SLE: Integers, segment_S: Integers, tree: Tree, layers_L: Integers) -> Iterator[str]:
    tokens_S = tree.tokens_S[segment_S]
    for slot, place in np.argwhere(((counts_SLE > tokens_S[:, None, None]) | (counts_SLE < 0)).any(-1)).tolist():
        worst = counts_SLE[slot, place]
        yield (
            f"segment {segment_S[slot]}, layer {layers_L[place]}: {worst.min()} to {worst.max()} rows an expert, "
            f"of {tokens_S[slot]} tokens"
        )


def _nested(ranks: Mapping[int, Integers], owners: Mapping[int, Integers], layers_L: Integers) -> Iterator[Finding]:
    """Where every rank of m lies in one rank of n, the rows of n's are the sums of m's, in every segment and layer."""
    for few, many in nested_sizes(ranks):
        inside_LRr = np.stack([(owners[many] == rank) for rank in range(many)], axis=1)  # [L, R of many, E]
        outer_LR = np.where(inside_LRr, owners[few][:, None, :], -1).max(-1)
        faults = [
            f"layer {layers_L[place]}: a rank of EP {many} lies in several of EP {few}"
            for place in np.flatnonzero((inside_LRr & (owners[few][:, None, :] != outer_LR[:, :, None])).any((1, 2))).tolist()
        ]
        folded = np.einsum("slr,lrq->slq", ranks[many], (outer_LR[:, :, None] == np.arange(few)).astype(np.int64))
        faults += [
            f"segment {segment}, layer {layers_L[place]}: the ranks of EP {many} don't sum to EP {few}'s"
            for segment, place in np.argwhere((folded != ranks[few]).any(-1)).tolist()
        ]
        yield finding(f"nested_ep {few} in {many}", "segments and layers", folded.shape[0] * folded.shape[1], faults)


def _content_faults(files: RunFiles, tree: Tree, digests: Mapping[int, bytes]) -> Iterator[str]:
    """Over all segments by their hash: the hash, then the digest of its rows."""
    named = sorted((tree.segment_hashes[segment], digest) for segment, digest in digests.items())
    found = hashlib.sha256(b"".join(bytes.fromhex(name) + digest for name, digest in named)).hexdigest()
    if found != files.body["content_hash"]:
        yield f"content hash {found[:12]} by the loads, the manifest says {str(files.body['content_hash'])[:12]}"
