"""DuckDB, NumPy and Fractions in plain Python give the same answer to the last bit on random small runs."""

from types import SimpleNamespace

import numpy as np
import pytest

from routing.query.imbalance import imbalance_rows
from tests.query.oracles import fraction_answer, numpy_answer
from tests.stores import measured_run, random_loads, random_tree, sha, write_tiny_run

GEOMETRIES = [(8, 2, [0, 1, 2]), (8, 1, [3]), (12, 3, [1, 4]), (16, 4, [0, 2, 3, 5]), (6, 6, [0, 1])]


def _world(seed):
    rng = np.random.default_rng(seed)
    num_experts, top_k, layers = GEOMETRIES[seed % len(GEOMETRIES)]
    paths, segment_tokens = random_tree(rng, num_segments=int(rng.integers(3, 20)))
    loads = random_loads(rng, segment_tokens=segment_tokens, layers=layers, num_experts=num_experts, top_k=top_k)
    return SimpleNamespace(
        num_experts=num_experts,
        top_k=top_k,
        layers=layers,
        paths=paths,
        segment_tokens=segment_tokens,
        loads=loads,
        hashes=[sha(f"trajectory {place}") for place in range(len(paths))],
    )


def _write(folder, world):
    names = ("paths", "segment_tokens", "loads", "num_experts", "top_k", "layers")
    return write_tiny_run(folder, **{name: getattr(world, name) for name in names})


@pytest.mark.parametrize("seed", range(15))
def test_three_oracles_agree_on_every_number(tmp_path, seed):
    world = _world(seed)
    run = _write(tmp_path / "run", world)
    eps = [ep for ep in (2, 3, 4, 6, 8) if world.num_experts % ep == 0]
    sizes = [1, 7, 19, 40, 10_000]
    view = ("packed", "logical")[seed % 2]
    order = ("corpus", 5, -3)[seed % 3]
    rows, _ = imbalance_rows(run, eps=eps, batch_sizes=sizes, view=view, order=order)
    for row, (ep, size) in zip(rows, [(ep, size) for ep in eps for size in sizes], strict=True):
        asked = {"ep": ep, "batch_tokens": size, "view": view, "order": order}
        expected = {
            "run": "run",
            "label": "tiny",
            "ep": ep,
            "batch_tokens": size,
            "view": view,
            **fraction_answer(world, **asked),
        }
        assert row == expected
        assert fraction_answer(world, **asked) == numpy_answer(world, **asked)


@pytest.mark.parametrize("seed", range(100, 106))
def test_three_oracles_agree_on_every_layer(tmp_path, seed):
    world = _world(seed)
    run = _write(tmp_path / "run", world)
    rows, _ = imbalance_rows(run, eps=[2], batch_sizes=[5, 30], by_layer=True)
    assert [(row["batch_tokens"], row["layer"]) for row in rows] == [(size, layer) for size in (5, 30) for layer in world.layers]
    for row in rows:
        asked = {"ep": 2, "batch_tokens": row["batch_tokens"], "view": "packed", "order": "corpus", "only_layer": row["layer"]}
        expected = fraction_answer(world, **asked)
        assert {name: row[name] for name in expected} == expected == numpy_answer(world, **asked)


@pytest.mark.parametrize("seed", [1, 3])
def test_the_fit_gets_the_worst_of_every_batch(tmp_path, seed):
    world = _world(seed)
    run = _write(tmp_path / "run", world)
    measured = measured_run(run, eps=[2], batch_sizes=[12])
    whole = fraction_answer(world, ep=2, batch_tokens=12, view="packed", order="corpus")
    worsts = measured.observed[0].worsts
    assert [one.batch for one in worsts] == list(range(whole["num_batches"]))
    largest = max(worsts, key=lambda one: (one.imbalance(2), -one.batch))
    assert (float(largest.imbalance(2)), largest.layer, largest.batch, largest.rank) == tuple(
        whole[name] for name in ("worst_imbalance", "worst_layer", "worst_batch", "worst_rank")
    )
