"""The prefix tree against a naive trie: one dictionary node a token."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.errors import InputError
from routing.corpus import tree as cutting
from routing.corpus.tree import build_tree

CORPORA = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=8, unique=True)


def _tree(sequences, segment_tokens):
    return build_tree([np.array(tokens, dtype=np.int32) for tokens in sequences], segment_tokens=segment_tokens)


class Trie:
    """Every prefix of every sequence is a node; children in order of first appearance."""

    def __init__(self, sequences):
        self.children = {(): []}
        self.ends = set(sequences)
        for tokens in sequences:
            for size in range(1, len(tokens) + 1):
                prefix = tokens[:size]
                if prefix not in self.children:
                    self.children[prefix] = []
                    self.children[prefix[:-1]].append(prefix)

    def segments(self, segment_tokens):
        """(prefix of the segment's parent, prefix at its end), depth first."""
        found = []

        def walk(start, prefix):
            for child in self.children[prefix]:
                descend(start, child)

        def descend(start, prefix):
            parts = len(self.children[prefix]) > 1 or prefix in self.ends
            if parts or len(prefix) - len(start) == segment_tokens:
                found.append((start, prefix))
                walk(prefix, prefix)
            else:
                walk(start, prefix)

        walk((), ())
        return found


@given(sequences=CORPORA, segment_tokens=st.integers(1, 4))
@settings(max_examples=300)
def test_the_tree_is_that_of_a_naive_trie(sequences, segment_tokens):
    expected = Trie(sequences).segments(segment_tokens)
    tree = _tree(sequences, segment_tokens)
    by_end = {end: number for number, (_, end) in enumerate(expected)}
    # At the root an edge begins with the first token; a run of the trie may start at a parting that lies inside an edge of
    # nobody, so both are cut from the same places: partings, ends, and every segment_tokens between.
    assert [(s.first_position, s.num_tokens) for s in tree.segments] == [(len(a), len(b) - len(a)) for a, b in expected]
    assert [s.parent_segment_id for s in tree.segments] == [by_end.get(start) for start, _ in expected]
    for tokens, path in zip(sequences, tree.paths, strict=True):
        assert path == tuple(sorted(number for number, (_, end) in enumerate(expected) if tokens[: len(end)] == end))


@given(sequences=CORPORA, segment_tokens=st.integers(1, 4))
@settings(max_examples=100)
def test_packed_tokens_are_the_distinct_prefixes(sequences, segment_tokens):
    tree = _tree(sequences, segment_tokens)
    assert tree.tokens_packed == len({tokens[:size] for tokens in sequences for size in range(1, len(tokens) + 1)})
    assert tree.tokens_logical == sum(map(len, sequences))


@given(sequences=CORPORA, segment_tokens=st.integers(1, 4))
@settings(max_examples=100)
def test_the_segments_that_a_trajectory_brings_are_one_range(sequences, segment_tokens):
    tree = _tree(sequences, segment_tokens)
    seen = set()
    brought = []
    for trajectory in tree.visit_order:
        new = [segment for segment in tree.paths[trajectory] if segment not in seen]
        seen.update(new)
        brought.extend(new)
    assert brought == list(range(len(tree.segments)))


def test_a_segment_hash_is_over_the_tokens_down_the_path():
    tree = _tree([(7, 8, 9), (7, 8, 5)], 1024)
    ids = b"".join(token.to_bytes(4, "little") for token in (7, 8, 9))
    expected = hashlib.sha256(ids + (2).to_bytes(8, "little")).hexdigest()
    assert [(s.first_position, s.num_tokens) for s in tree.segments] == [(0, 2), (2, 1), (2, 1)]
    assert tree.segments[1].segment_hash == expected


def test_hashes_name_the_same_tokens_whatever_the_order_of_the_corpus():
    sequences = [(1, 2, 3), (1, 2, 4), (5,), (1, 2)]
    for order in itertools.permutations(sequences):
        tree = _tree(order, 1)
        assert {s.segment_hash for s in tree.segments} == {s.segment_hash for s in _tree(sequences, 1).segments}


def test_a_trajectory_that_ends_inside_another_cuts_it_there():
    tree = _tree([(1, 2, 3, 4), (1, 2)], 1024)
    assert tree.paths == ((0, 1), (0,))


def test_a_segment_size_below_one_is_refused():
    with pytest.raises(InputError, match="segment-tokens"):
        _tree([(1,)], 0)


@pytest.mark.parametrize("stretch", [1, 2, 3])
@given(sequences=CORPORA)
@settings(max_examples=50)
def test_sequences_are_ranked_as_their_tokens_are_whatever_is_compared_at_a_time(stretch, sequences):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "_TOKENS_COMPARED", stretch)
        ranked = cutting._ranked([np.array(tokens, dtype=np.int32) for tokens in sequences])
    assert [sequences[place] for place in ranked] == sorted(sequences)
