"""The prefix tree: ids, parents, paths, and the token sums that follow from them.

S segments, T trajectories, P steps of all paths.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from routing.verify.files import Integers, RunFiles, integers
from routing.verify.finding import Finding, finding

ROOT = -1  # the parent of a segment that starts a trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """The tree as arrays; `paths` has the segment ids of every trajectory in the order of positions."""

    segment_hashes: tuple[str, ...]
    parents_S: Integers
    first_positions_S: Integers
    tokens_S: Integers
    trajectory_hashes: tuple[str, ...]
    tokens_T: Integers
    paths: tuple[Integers, ...]


def tree_findings(files: RunFiles) -> tuple[Tree | None, list[Finding]]:
    """(the tree, what its checks came to); None where ids are so wrong that there is no tree to go on with."""
    segments, trajectories, paths = (files.tree[name] for name in ("segments", "trajectories", "paths"))
    parents_S = integers(segments, "parent_segment_id", null=ROOT)
    numbered = [
        *_misnumbered("segment", integers(segments, "segment_id")),
        *_misnumbered("trajectory", integers(trajectories, "trajectory_id")),
        *_repeated("segment_hash", segments["segment_hash"].to_pylist()),
        *_repeated("trajectory_hash", trajectories["trajectory_hash"].to_pylist()),
        *_unknown("trajectory", integers(paths, "trajectory_id"), trajectories.num_rows),
        *_unknown("segment", integers(paths, "segment_id"), segments.num_rows),
        *_unknown("parent", parents_S, segments.num_rows, low=ROOT),
    ]
    ids = finding("ids", "segments and trajectories", segments.num_rows + trajectories.num_rows, numbered)
    if numbered:
        return None, [ids]
    of_T, position_P, segment_P = (integers(paths, name) for name in ("trajectory_id", "position", "segment_id"))
    order_P = np.lexsort((position_P, of_T))
    ends_T = np.cumsum(np.bincount(of_T, minlength=trajectories.num_rows))[:-1]
    tree = Tree(
        segment_hashes=tuple(segments["segment_hash"].to_pylist()),
        parents_S=parents_S,
        first_positions_S=integers(segments, "first_position"),
        tokens_S=integers(segments, "num_tokens"),
        trajectory_hashes=tuple(trajectories["trajectory_hash"].to_pylist()),
        tokens_T=integers(trajectories, "num_tokens"),
        paths=tuple(np.split(segment_P[order_P], ends_T)),
    )
    positions = np.split(position_P[order_P], ends_T)
    totals = _totals(tree)
    return tree, [
        ids,
        finding("prefix_tree", "path steps", len(segment_P), _path_faults(tree, positions)),
        finding("segment_starts", "segments", len(tree.tokens_S), _start_faults(tree)),
        finding("trajectory_tokens", "trajectories", len(tree.paths), _token_faults(tree)),
        finding("totals", "sums of the manifest", len(totals), _total_faults(totals, files.body["corpus"])),
        finding("corpus_hash", "hashes", 1, _corpus_hash_faults(files), is_damage=True),
    ]


def _path_faults(tree: Tree, positions: list[Integers]) -> Iterator[str]:
    """Positions are 0, 1, 2, ..., and each step's parent is the step before it; every segment lies on some path."""
    on_path_S = np.zeros(len(tree.tokens_S), dtype=bool)
    for trajectory, (path, place) in enumerate(zip(tree.paths, positions, strict=True)):
        before = np.concatenate([[ROOT], path[:-1]])
        wrong = np.flatnonzero((tree.parents_S[path] != before) | (place != np.arange(len(path))))
        if len(wrong) or not len(path):
            yield f"trajectory {trajectory}, step {int(wrong[0]) if len(wrong) else 0}: not the child of the step before it"
        on_path_S[path] = True
    yield from (f"segment {segment}: on no trajectory's path" for segment in np.flatnonzero(~on_path_S).tolist())


def _start_faults(tree: Tree) -> Iterator[str]:
    """A segment starts where its parent ends, and holds a token at least."""
    ends_S = tree.first_positions_S + tree.tokens_S
    expected_S = np.where(tree.parents_S == ROOT, 0, ends_S[tree.parents_S])
    for segment in np.flatnonzero((tree.first_positions_S != expected_S) | (tree.tokens_S < 1)).tolist():
        yield (
            f"segment {segment}: {tree.tokens_S[segment]} tokens from position {tree.first_positions_S[segment]}, "
            f"its parent ends at {expected_S[segment]}"
        )


def _token_faults(tree: Tree) -> Iterator[str]:
    for trajectory, path in enumerate(tree.paths):
        if (tokens := int(tree.tokens_S[path].sum())) != tree.tokens_T[trajectory]:
            yield f"trajectory {trajectory}: {tree.tokens_T[trajectory]} tokens, its segments hold {tokens}"


def _totals(tree: Tree) -> dict[str, int]:
    """A shared prefix once in packed tokens, in every trajectory that has it in logical ones."""
    copies_S = np.bincount(np.concatenate(tree.paths), minlength=len(tree.tokens_S))
    return {
        "tokens_packed": int(tree.tokens_S.sum()),
        "tokens_logical": int((copies_S * tree.tokens_S).sum()),
        "num_trajectories": len(tree.paths),
        "num_segments": len(tree.tokens_S),
    }


def _total_faults(totals: dict[str, int], corpus: Mapping[str, object]) -> Iterator[str]:
    for name, total in totals.items():
        if corpus[name] != total:
            yield f"{name}: {total} by the tables, the manifest says {corpus[name]}"


def _corpus_hash_faults(files: RunFiles) -> Iterator[str]:
    """The hash over every trajectory's hash, unit, stratum and place in its file, in order, and the segment cut."""
    names = ("trajectory_hash", "unit", "stratum", "source_file", "source_row")
    columns = [files.tree["trajectories"][name].to_pylist() for name in names]
    lines = ["\0".join(map(str, row)) for row in zip(*columns, strict=True)]
    text = "\n".join([f"segment_tokens={files.body['settings']['segment_tokens']}", *lines, ""])
    found, written = hashlib.sha256(text.encode()).hexdigest(), files.body["corpus"]["corpus_hash"]
    if found != written:
        yield f"corpus_hash: {found[:12]} by the trajectories, the manifest says {written[:12]}"


def _misnumbered(what: str, ids: Integers) -> Iterator[str]:
    for place in np.flatnonzero(ids != np.arange(len(ids)))[:1].tolist():
        yield f"{what} {ids[place]} in row {place}: ids are 0, 1, 2, ..."


def _repeated(what: str, values: list[str]) -> Iterator[str]:
    yield from (f"{what} {value[:12]} is there {count} times" for value, count in Counter(values).items() if count > 1)


def _unknown(what: str, ids: Integers, num_known: int, *, low: int = 0) -> Iterator[str]:
    for place in np.flatnonzero((ids < low) | (ids >= num_known))[:1].tolist():
        yield f"{what} {ids[place]} in row {place}: the run has {num_known}"
