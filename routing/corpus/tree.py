"""The prefix tree of a corpus: which tokens several trajectories share, cut into segments before the first forward pass.

A segment is a run of at most `segment_tokens` tokens at one place in the tree: it never crosses the place where
trajectories part or where one of them ends. Loads belong to segments, so a shared prompt is counted once.
"""

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from routing.core.errors import InputError
from routing.core.segments import PrefixTree, Segment
from routing.corpus.sequences import Described
from routing.store.schemas import SCHEMAS

TokenIds = npt.NDArray[np.int32]

_TOKENS_COMPARED = 256  # at a time, where sequences are put in order


def build_tree(sequences: Sequence[TokenIds], *, segment_tokens: int) -> PrefixTree:
    """The tree of `sequences` (distinct, none empty), the same for the same sequences and cut whatever they are called."""
    if segment_tokens < 1:
        raise InputError(f"--segment-tokens: {segment_tokens} is not positive")
    cuts = _cut_positions(sequences, segment_tokens)
    order = _depth_first(sequences, cuts)
    segments: list[Segment] = []
    paths: list[tuple[int, ...]] = [()] * len(sequences)
    open_path: list[Segment] = []
    previous: TokenIds | None = None
    for trajectory in order:
        tokens = sequences[trajectory]
        shared = 0 if previous is None else common_prefix(previous, tokens)
        while open_path and open_path[-1].end_position > shared:
            open_path.pop()
        _grow(open_path, segments, tokens, cuts[trajectory])
        paths[trajectory] = tuple(segment.segment_id for segment in open_path)
        previous = tokens
    return PrefixTree(segments=tuple(segments), paths=tuple(paths))


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """How many leading tokens two sequences share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size


def _cut_positions(sequences: Sequence[TokenIds], segment_tokens: int) -> list[list[int]]:
    """Per sequence, where its segments end: every parting and end on its way, and between them each `segment_tokens`."""
    ranked = _ranked(sequences)
    partings: list[set[int]] = [{len(sequence)} for sequence in sequences]
    # In sorted order a sequence parts from an earlier one at the smallest shared prefix between the two; `live` holds
    # those minima, rising, for all earlier sequences at once. Both sides of each parting are cut.
    for walk in (ranked, ranked[::-1]):
        live: list[int] = []
        for previous, current in itertools.pairwise(walk):
            shared = common_prefix(sequences[previous], sequences[current])
            live = [parting for parting in live if parting < shared]
            if shared:
                live.append(shared)
            partings[current].update(live)
    return [_subdivide(sorted(places), segment_tokens) for places in partings]


def _ranked(sequences: Sequence[TokenIds]) -> list[int]:
    """Places in the order of their tokens, one that ends first; compared a stretch at a time, or all tokens were there twice."""
    ranked: list[int] = []
    waiting = [(0, list(range(len(sequences))))]
    while waiting:
        start, alike = waiting.pop()
        if len(alike) == 1:
            ranked += alike
            continue
        groups: dict[bytes, list[int]] = {}
        for place in alike:
            stretch = sequences[place][start : start + _TOKENS_COMPARED].astype(">u4").tobytes()
            groups.setdefault(stretch, []).append(place)
        ranked += groups.pop(b"", [])
        waiting += [(start + _TOKENS_COMPARED, groups[stretch]) for stretch in sorted(groups, reverse=True)]
    return ranked


def _subdivide(places: list[int], segment_tokens: int) -> list[int]:
    ends: list[int] = []
    start = 0
    for place in places:
        ends.extend(range(start + segment_tokens, place, segment_tokens))
        ends.append(place)
        start = place
    return ends


def _depth_first(sequences: Sequence[TokenIds], cuts: list[list[int]]) -> list[int]:
    """Trajectories depth first, children by first appearance, a trajectory that ends inside others before them."""
    first_seen: dict[bytes, int] = {}
    keys: list[list[int]] = []
    for place, (tokens, ends) in enumerate(zip(sequences, cuts, strict=True)):
        digest = hashlib.blake2b(digest_size=16)
        start, key = 0, []
        for end in ends:
            digest.update(tokens[start:end].astype("<i4").tobytes())
            key.append(first_seen.setdefault(digest.digest(), place))
            start = end
        keys.append(key)
    return sorted(range(len(sequences)), key=lambda place: keys[place])


def _grow(open_path: list[Segment], segments: list[Segment], tokens: TokenIds, ends: list[int]) -> None:
    start = open_path[-1].end_position if open_path else 0
    digest = hashlib.sha256(tokens[:start].astype("<i4").tobytes())
    for end in ends:
        if end <= start:
            continue
        digest.update(tokens[start:end].astype("<i4").tobytes())
        segment = Segment(
            segment_id=len(segments),
            parent_segment_id=open_path[-1].segment_id if open_path else None,
            segment_hash=_segment_hash(digest, start),
            first_position=start,
            num_tokens=end - start,
        )
        segments.append(segment)
        open_path.append(segment)
        start = end


def _segment_hash(tokens_down_the_path: "hashlib._Hash", first_position: int) -> str:
    """sha256 over the int32 token ids from the root to the segment's end, then its first position as int64.

    The position tells apart two cuts of the same tokens; which trajectory, file or run they came from does not enter.
    """
    digest = tokens_down_the_path.copy()
    digest.update(first_position.to_bytes(8, "little"))
    return digest.hexdigest()


def tree_tables(tree: PrefixTree, trajectories: Sequence[Described]) -> dict[str, pa.Table]:
    """The tables `segments`, `trajectories` and `paths` of a run."""
    segments = [[getattr(segment, name) for segment in tree.segments] for name in SCHEMAS["segments"].names]
    described = [
        list(range(len(trajectories))),
        *([getattr(one, name) for one in trajectories] for name in SCHEMAS["trajectories"].names[1:]),
    ]
    steps = [(t, place, segment) for t, path in enumerate(tree.paths) for place, segment in enumerate(path)]
    columns = {"segments": segments, "trajectories": described, "paths": [list(column) for column in zip(*steps, strict=True)]}
    return {table: pa.table(values, schema=SCHEMAS[table]) for table, values in columns.items()}
