"""Entries of single layers: their own worsts, never above all layers, and a table that holds for its own run."""

import numpy as np

from routing.stages.check import check
from routing.stages.fit import fit
from routing.store.allowances import read_table
from tests.stores import random_loads, write_tiny_run


def _run(folder, *, num_units):
    """Units of two segments of 8 tokens behind one shared prompt of 4."""
    rng = np.random.default_rng(4)
    tokens = [4] + [8] * (2 * num_units)
    paths = [[0, 1 + 2 * unit, 2 + 2 * unit] for unit in range(num_units)]
    loads = random_loads(rng, segment_tokens=tokens, layers=(1, 3), num_experts=8, top_k=2)
    return write_tiny_run(folder, paths=paths, segment_tokens=tokens, loads=loads, num_experts=8, top_k=2, layers=(1, 3))


def _fitted(tmp_path, name, *, num_units):
    run, out = _run(tmp_path / name, num_units=num_units), tmp_path / f"{name}.yaml"
    fit([run.folder], out=out, eps=(2, 4), batch_sizes=(60, 20), order="corpus", by_layer=True)
    return run, out, read_table(out).entries


def test_layers_stand_beside_all_layers_and_never_above(tmp_path):
    run, out, entries = _fitted(tmp_path, "run", num_units=40)
    of_all = {(one.ep, one.batch_tokens): one for one in entries if one.layer == "all"}
    layers = [one for one in entries if one.layer != "all"]
    assert {one.layer for one in layers} == {1, 3}
    assert len(layers) == 2 * len(of_all) == 8
    for one in layers:
        whole = of_all[one.ep, one.batch_tokens]
        assert one.evidence.observed_max.imbalance <= one.allowance <= whole.allowance
        assert one.evidence.observed_max.layer == one.layer
        assert (one.status, one.evidence.method) == ("fitted", "strat-boot-v3")
    for place, whole in of_all.items():
        here = [one.evidence.observed_max.imbalance for one in layers if (one.ep, one.batch_tokens) == place]
        assert max(here) == whole.evidence.observed_max.imbalance
    assert check(out, [run.folder]).failure is None


def test_few_units_keep_headroom_in_every_layer(tmp_path):
    _, _, entries = _fitted(tmp_path, "few", num_units=19)
    assert {(one.status, one.evidence.method) for one in entries} == {("headroom", "headroom-v1")}
    assert {(one.evidence.estimate, one.evidence.stress, one.evidence.held_out) for one in entries} == {(None, None, None)}


def test_the_same_run_gives_the_same_entries(tmp_path):
    run, out, entries = _fitted(tmp_path, "run", num_units=24)
    fit([run.folder], out=out, eps=(2, 4), batch_sizes=(60, 20), order="corpus", by_layer=True)
    assert read_table(out).entries == entries
