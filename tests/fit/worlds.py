"""Small made counts, and the resampled batches of any draws worked out step by step in plain Python."""

import numpy as np

from routing.fit.counts import Counts
from tests.stores import random_tree


def random_counts(seed, *, num_segments=40, num_units=6, num_strata=1):
    """Counts over a random forest: units share segments, trajectories of a unit repeat their own."""
    rng = np.random.default_rng(seed)
    paths, tokens = random_tree(rng, num_segments=int(rng.integers(5, num_segments)))
    return Counts(
        trajectory_ids=np.concatenate([np.full(len(path), place) for place, path in enumerate(paths)]),
        segment_ids=np.concatenate(paths),
        num_tokens=np.array(tokens)[np.concatenate(paths)],
        units_T=rng.integers(0, num_units, len(paths)),
        strata_T=rng.integers(0, num_strata, len(paths)),
        unit_names=tuple(f"task/{unit}" for unit in range(num_units)),
        stratum_names=tuple(f"file-{stratum}" for stratum in range(num_strata)),
        layers=(1, 3),
        loads_SBL=rng.integers(0, 50, (len(tokens), 4, 2)).astype(np.float64),
    )


def batches_by_hand(counts, draws, batch_tokens):
    """Loads [block, layer] of each stream's full batches: concatenate the drawn units' trajectories, cut, count once.

    A segment of several units counts once a batch; one of a single unit once a batch and draw.
    """
    steps = list(zip(counts.trajectory_ids.tolist(), counts.segment_ids.tolist(), counts.num_tokens.tolist(), strict=True))
    units_of = {}
    order = []
    for trajectory, segment, _ in steps:
        unit = int(counts.units_T[trajectory])
        units_of.setdefault(segment, set()).add(unit)
        if unit not in order:
            order.append(unit)
    streams = []
    for drawn in draws:
        batches, met, size = [], set(), 0
        for place, index in enumerate(drawn):
            for trajectory, segment, tokens in steps:
                if counts.units_T[trajectory] != order[index]:
                    continue
                what = (segment, None if len(units_of[segment]) > 1 else place)
                if what in met:
                    continue
                met.add(what)
                size += tokens
                if size >= batch_tokens:
                    batches.append(sum(counts.loads_SBL[one] for one, _ in met))
                    met, size = set(), 0
        streams.append(batches)
    return streams
