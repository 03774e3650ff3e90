"""Which shared prefixes get a pass of their own: the places of the prefix tree whose cache later passes go on from.

Every place where trajectories part could be one. Where the tokens before it are few, repeating them as context below it
is cheaper than a pass: real trajectories part token by token at their first answer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from routing.core.segments import PrefixTree
from routing.measure.plan import PartPlan, Pass

# A pass of one token costs about what 100 more tokens of a pass do (demo policy, CPU), and splits a batch besides.
MIN_SAVED_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """The end of a shared prefix. `run` computes it from `parent`, the next anchor above, None from the first token."""

    parent: int | None
    run: Pass


def find_anchors(tree: PrefixTree, parts: Sequence[PartPlan]) -> dict[int, Anchor]:
    """By the prefix's last segment; the same for the same tree, whatever part or process computes it."""
    passes = [one for part in parts for one in part.passes]
    below = Counter(place for one in passes for place in tree.paths[one.trajectory])
    first_pass: dict[int, Pass] = {}
    for one in passes:
        for place in tree.paths[one.trajectory]:
            first_pass.setdefault(place, one)
    branches = Counter(segment.parent_segment_id for segment in tree.segments)
    anchors: dict[int, Anchor] = {}
    above: dict[int | None, int | None] = {None: None}  # the nearest anchor at or above a segment
    for segment in tree.segments:
        here, parent = segment.segment_id, above[segment.parent_segment_id]
        start = 0 if parent is None else anchors[parent].run.num_tokens
        saved = (segment.end_position - start) * (below[here] - 1)
        above[here] = parent
        if branches[here] > 1 and saved >= MIN_SAVED_TOKENS:
            first = first_pass[here]
            run = Pass(
                trajectory=first.trajectory,
                start=start,
                num_tokens=segment.end_position,
                first_segment=max(first.first_segment, -1 if parent is None else parent + 1),
                last_segment=here,
            )
            anchors[here], above[here] = Anchor(parent=parent, run=run), here
    return anchors


def continued(part: PartPlan, tree: PrefixTree, anchors: Mapping[int, Anchor]) -> list[tuple[int | None, list[Pass]]]:
    """The part's passes by the anchor that they go on from, depth first; None for those that share no long prefix."""
    groups: dict[int | None, list[Pass]] = defaultdict(list)
    for one in part.passes:
        anchor = next((segment for segment in reversed(tree.paths[one.trajectory]) if segment in anchors), None)
        if anchor is not None:
            start = anchors[anchor].run.num_tokens
            one = replace(one, start=start, first_segment=max(one.first_segment, anchor + 1))
        groups[anchor].append(one)
    return sorted(groups.items(), key=lambda group: -1 if group[0] is None else group[0])


def way_down(anchor: int, anchors: Mapping[int, Anchor]) -> list[int]:
    """The anchors from the first token to `anchor`, it included."""
    return list(_way_up(anchor, anchors))[::-1]


def _way_up(anchor: int | None, anchors: Mapping[int, Anchor]) -> Iterator[int]:
    while anchor is not None:
        yield anchor
        anchor = anchors[anchor].parent


def tokens_once(tree: PrefixTree, parts: Sequence[PartPlan], anchors: Mapping[int, Anchor]) -> list[int]:
    """Tokens that each part computes with prefixes once: its passes from their anchors, and the anchors that it brings."""
    brought = [(one.run.last_segment, one.run.num_new) for one in anchors.values()]
    return [
        sum(one.num_new for _, passes in continued(part, tree, anchors) for one in passes)
        + sum(tokens for segment, tokens in brought if part.first_segment <= segment <= part.last_segment)
        for part in parts
    ]
