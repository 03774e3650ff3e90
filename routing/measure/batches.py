"""Passes in batches of similar length: each row of a batch is padded to its longest."""

from collections.abc import Sequence

from routing.measure.plan import Pass

# What one more forward pass costs, in padded tokens. CPU: one of one token takes what 100 more take (demo policy). CUDA: not
# measured; some 4,000 launches of 10 microseconds, in which 3B active parameters see about as many tokens.
PASS_TOKENS = {"cpu": 256, "cuda": 2_048}


def deal_batches(
    passes: Sequence[Pass], *, tokens_per_batch: int, pass_tokens: int, most_rows: int | None = None
) -> list[list[Pass]]:
    """Batches that cost least, longest passes first, so that whether memory suffices shows early.

    A batch costs its rows x its longest, and `pass_tokens`. It has `most_rows` rows at most, and no more than `tokens_per_batch`
    padded tokens unless it is a single pass. Passes by length are cut into runs; the best cut of the last n is known from
    those of fewer.
    """
    queue = sorted(passes, key=lambda one: (-one.num_new, one.trajectory))
    least = [0] * (len(queue) + 1)  # the cost of the passes from here on
    ends = [0] * len(queue)  # where the batch that begins here ends
    for first in range(len(queue) - 1, -1, -1):
        longest = queue[first].num_new
        fits = max(1, tokens_per_batch // longest)
        rows = min(fits if most_rows is None else min(fits, most_rows), len(queue) - first)
        least[first], ends[first] = min(
            (count * longest + pass_tokens + least[first + count], first + count) for count in range(1, rows + 1)
        )
    batches, first = [], 0
    while first < len(queue):
        batches.append(queue[first : ends[first]])
        first = ends[first]
    return batches
