"""A check fails where a batch is above its allowance, and a table always passes the runs that it was fitted to."""

import hashlib
import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import typer

from routing.cli import reporting
from routing.core.allowance import Override, entries_hash
from routing.core.errors import CheckFailedError, DamagedDataError, InputError
from routing.stages.check import check
from routing.stages.fit import fit
from routing.store.allowances import read_table, write_table
from tests.stores import random_loads, random_tree, sha, write_tiny_run


def _four_batches(folder, rows=((6, 4), (5, 5), (7, 3), (5, 5)), **more):
    """A run of four trajectories of ten tokens, top-1 of two experts: a batch of 10 tokens each, `rows` on its two ranks."""
    loads = {(segment, 0): list(counts) for segment, counts in enumerate(rows)}
    paths = [[segment] for segment in range(len(rows))]
    return write_tiny_run(folder, paths=paths, segment_tokens=[10] * len(rows), loads=loads, num_experts=2, top_k=1, **more)


def _fit(run, out, *, batch_sizes=(10,), order="corpus"):
    fit([run.folder], out=out, eps=(2,), batch_sizes=batch_sizes, order=order)
    return out


def _rewrite(path, *, layer=None, allowance=None):
    """The table with its first entry changed and hashed anew: what a person could have had reviewed."""
    table = read_table(path)
    entry = table.entries[0]
    changed = replace(entry, layer=entry.layer if layer is None else layer, allowance=Decimal(allowance or entry.allowance))
    entries = (changed, *table.entries[1:]) if layer is None else (*table.entries, changed)
    write_table(
        path, replace(table, entries=entries, content_hash=entries_hash(table.model, table.placement, entries, table.generated))
    )
    return path


def _run(function, *arguments):
    app = typer.Typer()
    app.command()(function)
    app(list(map(str, arguments)), standalone_mode=False)


@pytest.mark.parametrize("seed", range(15))
def test_a_fitted_table_passes_its_own_runs(tmp_path, seed):
    rng = np.random.default_rng(seed)
    num_experts, top_k = [(2, 1), (4, 2), (8, 3), (8, 8), (16, 2)][seed % 5]
    layers = [(0,), (0, 1, 2), (1, 3)][seed % 3]
    folders = []
    for number in range(1 + seed % 2):
        paths, sizes = random_tree(rng, num_segments=int(rng.integers(1, 30)))
        shape = {"layers": layers, "num_experts": num_experts, "top_k": top_k}
        loads = random_loads(rng, segment_tokens=sizes, **shape)
        label = f"policy {number}"
        run = write_tiny_run(tmp_path / f"run{number}", paths=paths, segment_tokens=sizes, loads=loads, label=label, **shape)
        folders.append(run.folder)
    table = tmp_path / "table.yaml"
    order = "corpus" if seed % 4 else int(rng.integers(0, 99))
    fit(folders, out=table, eps=None, batch_sizes=(50, 20, 7, 2), order=order)
    found = check(table, folders)
    assert found.failure is None
    assert found.nothing_said is None
    assert found.answer["exceeded"] == []
    assert {one["outcome"] for one in found.answer["compared"]} <= {"holds", "proven", "unmeasured"}
    assert len(found.answer["compared"]) == len(folders) * len(read_table(table).entries)


@pytest.mark.fault(
    "imbalance above the allowance",
    how="an allowance of 1.1 checked against batches of 1.2 and 1.4",
    tries=1,
    outcome="exit 1; policy, layer, batch and a value to plan with; nothing changed",
)
def test_every_batch_above_is_named_and_a_value_proposed(tmp_path):
    run = _four_batches(tmp_path / "run")
    # Worst 7 x 2 / 10 = 1.4, so 1 + 1.35 x 0.4 = 1.54 -> 1.6; set to 1.1, batches 0 (1.2) and 2 (1.4) are above.
    table = _rewrite(_fit(run, tmp_path / "table.yaml"), allowance="1.1")
    before = table.read_bytes()
    found = check(table, [run.folder])
    named = [(one["policy"], one["layer"], one["batch"], one["rank"], one["factor"]) for one in found.answer["exceeded"]]
    assert named == [("tiny", 0, 2, 0, 1.4), ("tiny", 0, 0, 0, 1.2)]
    assert not found.answer["holds"]
    place = {"ep": 2, "batch_tokens": 10, "layer": "all"}
    assert found.answer["proposals"] == [{**place, "allowance": 1.1, "proposed": 1.6, "binds": "core"}]
    assert found.failure == (
        f"{table}: one allowance is exceeded, the furthest at ep=2 batch_tokens=10: 1.400000 against 1.1, policy 'tiny' "
        "(run run), layer 0, batch 2; proposed 1.6; nothing was changed, fit again with these runs"
    )
    assert table.read_bytes() == before


def test_a_run_that_routes_less_evenly_than_the_fitted_one_fails(tmp_path):
    table = _fit(_four_batches(tmp_path / "fitted"), tmp_path / "table.yaml")
    other = _four_batches(tmp_path / "other", ((5, 5), (1, 9), (5, 5), (5, 5)), label="later")
    found = check(table, [tmp_path / "fitted", other.folder])
    # 9 x 2 / 10 = 1.8 on rank 1; 1 + 1.35 x 0.8 = 2.08, and EP 2 caps at 2.
    assert [(one["run"], one["batch"], one["rank"], one["factor"]) for one in found.answer["exceeded"]] == [("other", 1, 1, 1.8)]
    assert [(one["proposed"], one["binds"]) for one in found.answer["proposals"]] == [(2.0, "ceiling")]
    assert [one["outcome"] for one in found.answer["compared"]] == ["holds", "exceeded"]


def test_an_entry_of_a_layer_compares_that_layer_and_is_proposed_within_all_layers(tmp_path):
    loads = {(segment, layer): rows for segment in (0, 1) for layer, rows in ((0, [7, 3]), (1, [6, 4]))}
    shape = {"num_experts": 2, "top_k": 1, "layers": (0, 1)}
    run = write_tiny_run(tmp_path / "run", paths=[[0], [1]], segment_tokens=[10, 10], loads=loads, **shape)
    # All layers: 1.4 seen, 1.6 allowed. Layer 1: 1.2 seen, 1 + 1.35 x 0.2 = 1.27 -> 1.3, but the table's own worst is 1.4 -> 1.6.
    table = _rewrite(_fit(run, tmp_path / "table.yaml"), layer=1, allowance="1.1")
    found = check(table, [run.folder])
    above = [(one["allowance_layer"], one["layer"], one["batch"], one["factor"]) for one in found.answer["exceeded"]]
    assert above == [(1, 1, 0, 1.2), (1, 1, 1, 1.2)]
    assert [(one["layer"], one["proposed"]) for one in found.answer["proposals"]] == [(1, 1.6)]


def test_a_smaller_batch_is_proposed_at_least_what_a_larger_one_is(tmp_path):
    # 20 tokens: 14 x 2 / 20 = 1.4 above 1.1, so 1 + 1.35 x 0.4 = 1.54 -> 1.6; 10 tokens: 1.4 within 1.5, which 1.6 passes.
    run = _four_batches(tmp_path / "run", ((7, 3), (7, 3), (5, 5), (5, 5)))
    path = _fit(run, tmp_path / "table.yaml", batch_sizes=(20, 10))
    table = read_table(path)
    assert [one.batch_tokens for one in table.entries] == [20, 10]
    entries = tuple(replace(one, allowance=Decimal(text)) for one, text in zip(table.entries, ("1.1", "1.5"), strict=True))
    write_table(
        path, replace(table, entries=entries, content_hash=entries_hash(table.model, table.placement, entries, table.generated))
    )
    proposals = check(path, [run.folder]).answer["proposals"]
    assert [(one["batch_tokens"], one["proposed"], one["binds"]) for one in proposals] == [
        (20, 1.6, "core"),
        (10, 1.6, "batch_tokens=20"),
    ]


@pytest.mark.parametrize(("order", "worst"), [("corpus", 1.0), (1, 1.4)])
def test_batches_are_cut_in_the_order_of_the_fit(tmp_path, order, worst):
    # In corpus order batches of 20 tokens hold (7, 3) + (3, 7): even. sha256 of 1:TRAJECTORY_HASH puts the trajectories in the
    # order 0, 3, 2, 1: (7, 3) + (7, 3), so 14 x 2 / 20 = 1.4.
    keys = [hashlib.sha256(f"1:{sha(f'trajectory {one}')}".encode()).digest() for one in range(4)]
    assert sorted(range(4), key=keys.__getitem__) == [0, 3, 2, 1]
    run = _four_batches(tmp_path / "run", ((7, 3), (3, 7), (3, 7), (7, 3)))
    table = _fit(run, tmp_path / "table.yaml", batch_sizes=(20,), order=order)
    found = check(table, [run.folder])
    assert found.failure is None
    assert [one["worst_imbalance"] for one in found.answer["compared"]] == [worst]


def test_a_size_without_a_full_batch_is_named_and_never_passed_in_silence(tmp_path):
    long, short = _four_batches(tmp_path / "long"), _four_batches(tmp_path / "short", ((6, 4),), label="short")
    table = _fit(long, tmp_path / "table.yaml", batch_sizes=(20, 10))
    found = check(table, [long.folder, short.folder])
    assert found.nothing_said is None
    assert found.answer["not_compared"] == [
        "short: no full batch at ep=2 batch_tokens=20, the run holds 10 tokens; nothing is said of it"
    ]
    assert any(line.startswith("no_full_batch: short: batch_tokens=20") for line in found.warnings)


@pytest.mark.fault(
    "a check to which the runs say nothing",
    how="runs shorter than every batch of the table",
    tries=1,
    outcome="exit 2, neither a pass nor a failure",
)
def test_runs_that_say_nothing_are_neither_a_pass_nor_a_failure(tmp_path):
    long, short = _four_batches(tmp_path / "long"), _four_batches(tmp_path / "short", ((6, 4),), label="short")
    table = _fit(long, tmp_path / "table.yaml", batch_sizes=(20,))
    with pytest.raises(InputError, match="nothing was checked"):
        _run(reporting.check, table, short.folder)


@pytest.mark.fault(
    "a table checked against a run of another model",
    how="a run of four experts, a table of two",
    tries=1,
    outcome="exit 2, both values named",
)
def test_runs_of_another_model_are_refused(tmp_path):
    table = _fit(_four_batches(tmp_path / "run"), tmp_path / "table.yaml")
    shape = {"num_experts": 4, "top_k": 1}
    other = write_tiny_run(tmp_path / "other", paths=[[0]], segment_tokens=[10], loads={(0, 0): [4, 2, 2, 2]}, **shape)
    with pytest.raises(InputError, match=r"other: another model, num_experts 4 against 2 of tiny/tiny"):
        check(table, [tmp_path / "run", other.folder])


def test_an_edited_table_is_refused_with_its_line(tmp_path):
    table = _fit(_four_batches(tmp_path / "run"), tmp_path / "table.yaml")
    lines = table.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if "allowance: 1.6" in text)
    table.write_text(table.read_text().replace("allowance: 1.6", "allowance: 1.7"))
    with pytest.raises(DamagedDataError, match=rf"table.yaml:{line}: edited by hand"):
        check(table, [tmp_path / "run"])


def test_an_edited_table_that_someone_answers_for_is_checked(tmp_path):
    path = _fit(_four_batches(tmp_path / "run"), tmp_path / "table.yaml")
    table = read_table(path)
    lower = replace(table.entries[0], allowance=Decimal("1.3"))
    write_table(path, replace(table, entries=(lower,), override=Override(reason="a trial", name="Ada")))
    assert check(path, [tmp_path / "run"]).failure is not None


def test_other_choices_of_the_run_are_said(tmp_path):
    table = _fit(_four_batches(tmp_path / "run"), tmp_path / "table.yaml")
    other = _four_batches(tmp_path / "other", dtype="bfloat16", cut_tokens=16)
    lines = check(table, [other.folder]).warnings
    assert any("other: measured with dtype bfloat16, the table was fitted with float32" in line for line in lines)
    assert any("segment_tokens 16, the table was fitted with 1024" in line for line in lines)


def test_the_verb_prints_all_then_fails(tmp_path, capsys):
    run = _four_batches(tmp_path / "run")
    table = _rewrite(_fit(run, tmp_path / "table.yaml"), allowance="1.1")
    with pytest.raises(CheckFailedError, match="policy 'tiny'"):
        _run(reporting.check, table, run.folder, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert [one["factor"] for one in answer["exceeded"]] == [1.4, 1.2]
    with pytest.raises(CheckFailedError):
        _run(reporting.check, table, run.folder)
    shown = capsys.readouterr().out
    assert "1.400000" in shown
    assert "1.200000" in shown


def test_the_verb_passes_in_silence_but_for_its_table(tmp_path, capsys):
    run = _four_batches(tmp_path / "run")
    _run(reporting.check, _fit(run, tmp_path / "table.yaml"), run.folder)
    assert "holds" in capsys.readouterr().out
