"""The second way finds what the first must find, and comes to the same figures where nothing is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from routing.core.placement import CONTIGUOUS, STRIDED, LayerPlacement, Placement, PlacementFile
from routing.query.imbalance import imbalance_rows
from routing.stages.verify import owners_of
from routing.store.manifest import decode, encode
from routing.verify.batches import batch_ranks, cut, imbalance_finding, nested_finding, worst
from routing.verify.files import file_findings, read_run_files
from routing.verify.loads import recount
from routing.verify.tree import tree_findings
from tests.stores import LOADS, MODEL, TREE, random_loads, random_tree, write_tiny_run


def _write(folder, **changes):
    loads = {**LOADS, **changes.pop("loads", {})}
    write_tiny_run(folder, **TREE, **MODEL, **{"loads": loads, **changes})
    return folder


def _counted(folder, eps=(2, 4), placement=CONTIGUOUS):
    files = read_run_files(folder)
    tree, found = tree_findings(files)
    counted = recount(files, tree, owners_of(files, eps, placement))
    return tree, counted, [*file_findings(files), *found, *counted.findings]


def _failed(folder):
    return {one.check: one.first for one in _counted(folder)[2] if one.num_failed}


def _reseal(folder, change):
    """The manifest changed and hashed anew."""
    path = folder / "manifest.json"
    path.write_bytes(encode(change(decode(path.read_bytes(), where="here"))))


def test_a_sound_run_holds_every_check_and_says_how_much_it_held(tmp_path):
    # 3 segments x 2 layers x 4 experts are 24 places; 2 trajectories of 2 steps.
    found = {one.check: (one.num_checked, one.num_failed) for one in _counted(_write(tmp_path / "run"))[2]}
    assert found == {
        "manifest_sha256": (1, 0),
        "part_sha256": (4, 0),
        "ids": (5, 0),
        "prefix_tree": (4, 0),
        "segment_starts": (3, 0),
        "trajectory_tokens": (2, 0),
        "totals": (4, 0),
        "corpus_hash": (1, 0),
        "coverage": (24, 0),
        "rows_conserved": (6, 0),
        "experts_distinct": (6, 0),
        "counted_once": (3, 0),
        "nested_ep 2 in 4": (6, 0),
        "content_hash": (1, 0),
    }


@pytest.mark.parametrize(
    ("loads", "check", "first"),
    [
        ({(0, 1): [4, 2, 1, 0]}, "rows_conserved", "segment 0, layer 1: 7 rows, 4 tokens x top-2 = 8"),
        ({(1, 3): [0] * 4}, "rows_conserved", "segment 1, layer 3: 0 rows, 2 tokens x top-2 = 4"),
        ({(0, 1): [5, 1, 1, 1]}, "experts_distinct", "segment 0, layer 1: 1 to 5 rows an expert, of 4 tokens"),
        ({(2, 3): [4, 3, -1, 0]}, "experts_distinct", "segment 2, layer 3: -1 to 4 rows an expert, of 3 tokens"),
        ({(2, 3): [3, 2, 1]}, "coverage", "loads-00000.parquet, row 23: not every expert"),
        ({(1, 2): [2, 2, 0, 0]}, "coverage", "loads-00000.parquet, row 12: not every expert"),
    ],
    ids=["a row lost", "a layer of zeros", "an expert twice", "a negative count", "an expert left out", "a dense layer"],
)
def test_a_miscount_is_found_where_it_lies(tmp_path, loads, check, first):
    failed = _failed(_write(tmp_path / "run", loads=loads))
    assert failed[check].startswith(first)


def test_a_segment_without_loads_is_found(tmp_path):
    some = {key: rows for key, rows in LOADS.items() if key[0] < 2}
    write_tiny_run(tmp_path / "run", **TREE, **MODEL, loads=some)
    assert _failed(tmp_path / "run")["coverage"] == "segment 2: no loads"


@pytest.mark.parametrize(
    ("total", "said"), [("tokens_packed", 9), ("tokens_logical", 13), ("num_segments", 3), ("num_trajectories", 2)]
)
def test_a_total_that_the_tables_do_not_hold_is_found(tmp_path, total, said):
    folder = _write(tmp_path / "run")
    _reseal(folder, lambda m: replace(m, corpus=replace(m.corpus, **{total: said + 1})))
    assert _failed(folder) == {"totals": f"{total}: {said} by the tables, the manifest says {said + 1}"}


def test_trajectories_under_another_corpus_hash_are_found(tmp_path):
    folder = _write(tmp_path / "run")
    _reseal(folder, lambda m: replace(m, corpus=replace(m.corpus, corpus_hash="f" * 64)))
    assert set(_failed(folder)) == {"corpus_hash"}


def test_loads_under_another_content_hash_are_found(tmp_path):
    assert set(_failed(_write(tmp_path / "run", content_hash_text="f" * 64))) == {"content_hash"}


def test_rows_of_the_ranks_by_hand(tmp_path):
    # Segment 0, layer 1: experts 4, 2, 1, 1. Contiguous ranks of EP 2: 6 and 2; round-robin: 4 + 1 and 2 + 1.
    folder = _write(tmp_path / "run")
    assert _counted(folder)[1].ranks[2][0].tolist() == [[6, 2], [4, 4]]
    assert _counted(folder, placement=STRIDED)[1].ranks[2][0].tolist() == [[5, 3], [4, 4]]
    assert _counted(folder)[1].ranks[4][2].tolist() == [[0, 0, 3, 3], [3, 1, 1, 1]]


def test_the_second_way_places_experts_by_itself(tmp_path, monkeypatch):
    """Two layers of four experts: neighbours, by turns, and as a file has them; core's own placements are not asked."""
    monkeypatch.setattr(Placement, "ranks", lambda *_, **__: pytest.fail("core placed them"))
    files = read_run_files(_write(tmp_path / "run"))
    ranks = ((1, (1, 0, 1, 0)), (3, (0, 1, 1, 0)))
    layers = tuple(LayerPlacement(layer=layer, ranks=placed) for layer, placed in ranks)
    of_a_file = Placement(kind="file", file=PlacementFile(ep=2, layers=layers))
    assert owners_of(files, (2,), CONTIGUOUS)[2].tolist() == [[0, 0, 1, 1]] * 2
    assert owners_of(files, (2,), STRIDED)[2].tolist() == [[0, 1, 0, 1]] * 2
    assert owners_of(files, (2,), of_a_file)[2].tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]


def test_ranks_that_are_not_nested_are_found(tmp_path):
    """Experts dealt to EP 2 by neighbours and to EP 4 by turns: no rank of four lies in one of two."""
    loads = {key: [*rows, 0, 0, 0, 0] for key, rows in LOADS.items()}
    files = read_run_files(write_tiny_run(tmp_path / "run", **TREE, loads=loads, num_experts=8, top_k=2, layers=[1, 3]).folder)
    tree, _ = tree_findings(files)
    owners = {2: owners_of(files, (2,), CONTIGUOUS)[2], 4: owners_of(files, (4,), STRIDED)[4]}
    (nested,) = [one for one in recount(files, tree, owners).findings if one.check == "nested_ep 2 in 4"]
    assert nested.first == "layer 1: a rank of EP 4 lies in several of EP 2"


def test_imbalances_that_can_not_be_nested_are_found():
    # EP 2's busiest rank has 6 of 8 rows, so that EP 4's has at least 3, and no more than 6.
    two = np.array([[[6, 2]]])
    for four, num_failed in (([3, 3, 1, 1], 0), ([6, 0, 2, 0], 0), ([2, 2, 2, 2], 1), ([7, 0, 1, 0], 1)):
        assert nested_finding({2: two, 4: np.array([[four]])}, [0], batch_tokens=4).num_failed == num_failed


def test_the_worst_of_equals_is_the_first(tmp_path):
    ranks_BLR = np.array([[[1, 1], [1, 3]], [[3, 1], [1, 3]]])
    found = worst(ranks_BLR, [2, 5])
    assert (found.batch, found.layer, found.rank, found.busiest_rows, found.routed_rows) == (0, 5, 1, 3, 4)
    assert worst(ranks_BLR[:0], [2, 5]) is None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", ["corpus", 3])
def test_both_ways_come_to_the_same_imbalances(tmp_path, seed, order):
    rng = np.random.default_rng(seed)
    paths, tokens = random_tree(rng, num_segments=24)
    sizes = {"layers": (0, 2, 3), "num_experts": 8, "top_k": 2}
    loads = random_loads(rng, segment_tokens=tokens, **sizes)
    run = write_tiny_run(tmp_path / "run", paths=paths, segment_tokens=tokens, loads=loads, **sizes)
    tree, counted, found = _counted(run.folder, (2, 4, 8))
    assert [one for one in found if one.num_failed] == []
    for size in (7, 20):
        answers, _ = imbalance_rows(run, eps=(2, 4, 8), batch_sizes=(size,), by_layer=True, order=order)
        batches = cut(tree, batch_tokens=size, order=order)
        by_ep = {ep: batch_ranks(batches, ranks) for ep, ranks in counted.ranks.items()}
        compared = imbalance_finding(answers, by_ep, sizes["layers"], batch_tokens=size)
        assert (compared.num_checked, compared.first) == (9, "")
        assert nested_finding(by_ep, sizes["layers"], batch_tokens=size).num_failed == 0
        wrong = [answers[0] | {"worst_imbalance": answers[0]["worst_imbalance"] + 1e-12}, *answers[1:]]
        told = imbalance_finding(wrong, by_ep, sizes["layers"], batch_tokens=size)
        assert (told.num_failed, told.first[:28]) == (1, "ep=2 layer=0: worst_imbalanc")
