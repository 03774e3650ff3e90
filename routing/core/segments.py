"""The prefix tree in words: segments, and the path of each trajectory through them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Tokens [first_position, first_position + num_tokens) of every trajectory that passes through it."""

    segment_id: int
    parent_segment_id: int | None
    segment_hash: str
    first_position: int
    num_tokens: int

    @property
    def end_position(self) -> int:
        """The position after its last token."""
        return self.first_position + self.num_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTree:
    """Segments numbered depth first, children in the order of the corpus, and each trajectory's path of segment ids.

    Because of that order the segments that a trajectory brings first are one unbroken range of ids, see `visit_order`.
    """

    segments: tuple[Segment, ...]
    paths: tuple[tuple[int, ...], ...]

    @property
    def visit_order(self) -> tuple[int, ...]:
        """Trajectories by the id of their last segment."""
        return tuple(sorted(range(len(self.paths)), key=lambda trajectory: self.paths[trajectory][-1]))

    @property
    def tokens_packed(self) -> int:
        """Tokens with every shared prefix counted once."""
        return sum(segment.num_tokens for segment in self.segments)

    @property
    def tokens_logical(self) -> int:
        """Tokens with every trajectory counted in full."""
        return sum(self.segments[path[-1]].end_position for path in self.paths)
