"""What needs no statistics holds of any placement that nests, and both sides that count gather experts the same way."""

import math

import numpy as np
import pytest

from routing.core.placement import CONTIGUOUS, STRIDED, LayerPlacement, Placement, PlacementFile
from routing.fit.counts import Counts
from routing.fit.recut import real_batches
from routing.query.imbalance import observed_run, tabulated
from routing.query.loads import segment_loads
from routing.query.runner import ask
from tests.stores import random_loads, write_tiny_run

EXPERTS, TOP_K, LAYERS = 12, 3, (0, 2)
TOKENS = [7, 5, 9, 6, 8, 4, 7, 9, 5, 6]


@pytest.fixture(scope="module")
def run_and_loads(tmp_path_factory):
    loads = random_loads(np.random.default_rng(9), segment_tokens=TOKENS, layers=LAYERS, num_experts=EXPERTS, top_k=TOP_K)
    sizes = {"num_experts": EXPERTS, "top_k": TOP_K, "layers": LAYERS}
    paths = [[segment] for segment in range(len(TOKENS))]
    return write_tiny_run(tmp_path_factory.mktemp("runs") / "r", paths=paths, segment_tokens=TOKENS, loads=loads, **sizes), loads


def shuffled(ep):
    """Another random placement in each layer."""
    rng = np.random.default_rng(ep)
    owners = np.repeat(np.arange(ep), EXPERTS // ep)
    layers = tuple(LayerPlacement(layer=layer, ranks=tuple(rng.permutation(owners).tolist())) for layer in LAYERS)
    return Placement(kind="file", file=PlacementFile(ep=ep, layers=layers))


CASES = [(CONTIGUOUS, (2, 3, 4, 6, 12)), (STRIDED, (2, 3, 4, 6, 12)), (shuffled(3), (3,)), (shuffled(4), (4,))]


@pytest.mark.parametrize(("placement", "eps"), CASES)
def test_queries_and_arrays_gather_experts_as_the_placement_says(run_and_loads, placement, eps):
    run, loads = run_and_loads
    with tabulated(run, eps=eps, batch_sizes=(1,), view="packed", order="corpus", placement=placement) as tables:
        rows = ask(tables.con, "sql/layer_imbalances.sql")
        observed = observed_run(run, tables, eps=eps, view="packed", order="corpus").observed
        counts = Counts(**segment_loads(tables, eps=eps, layers=LAYERS))
    assert len(rows) == len(eps) * len(LAYERS) * len(TOKENS)
    for row in rows:  # a batch of 1 token is one segment; counted here expert by expert
        by_rank = [0] * row["ep"]
        owners = placement.ranks(row["layer"], ep=row["ep"], num_experts=EXPERTS)
        for expert, count in enumerate(loads[row["batch"], row["layer"]]):
            by_rank[owners[expert]] += count
        assert (row["busiest_rows"], row["busiest_rank"]) == (max(by_rank), by_rank.index(max(by_rank)))
    recut = real_batches(counts, batch_tokens=1, eps=eps)
    assert [worsts.worsts for worsts in observed] == [recut.worsts(ep) for ep in eps]
    owners = placement.ranks(observed[0].worsts[0].layer, ep=eps[0], num_experts=EXPERTS)
    assert len({owners[one.expert] for one in observed[0].top_experts}) == 1


@pytest.mark.parametrize("placement", [CONTIGUOUS, STRIDED])
def test_a_rank_is_whole_ranks_of_every_multiple(placement):
    for ep in (1, 2, 3, 4, 6, 12):
        few = placement.ranks(0, ep=ep, num_experts=EXPERTS)
        assert {few.count(rank) for rank in range(ep)} == {EXPERTS // ep}
        for more in (size for size in (2, 3, 4, 6, 12) if size % ep == 0):
            many = placement.ranks(0, ep=more, num_experts=EXPERTS)
            assert len(set(zip(few, many, strict=True))) == more == math.lcm(ep, more)
