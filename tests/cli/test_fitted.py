"""What `routing fit` prints of a table: each entry's bound and what it rests on, whole in a terminal of 100 columns."""

import contextlib
import io
from decimal import Decimal

import numpy as np
import pytest

from routing.cli.fitted import show_fit
from routing.fit import resample
from routing.stages.fit import fit
from routing.store.allowances import read_table
from tests.stores import random_loads, write_tiny_run

NUM_UNITS = 36


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """(Text, entries) of two policies over 36 units of one segment behind a shared prompt."""
    folder = tmp_path_factory.mktemp("fitted")
    tokens = [4] + [16] * NUM_UNITS
    tree = {"paths": [[0, 1 + unit] for unit in range(NUM_UNITS)], "segment_tokens": tokens, "num_experts": 8, "top_k": 2}
    for seed, label in enumerate(("base", "a tuned policy of a long name")):
        loads = random_loads(np.random.default_rng(seed), segment_tokens=tokens, layers=(1, 3), num_experts=8, top_k=2)
        write_tiny_run(folder / f"run-{seed}", loads=loads, label=label, layers=(1, 3), **tree)
    out, said = folder / "allowances.yaml", io.StringIO()
    runs = [folder / "run-0", folder / "run-1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resample, "NUM_BATCHES", 60)
        patch.setattr(resample, "NUM_POOLS", 6)
        answer = fit(runs, out=out, eps=(2, 4), batch_sizes=(40, 20), order="corpus", by_layer=True)
    with contextlib.redirect_stdout(said):
        show_fit(answer.table)
    return said.getvalue(), read_table(out).entries


def _cells(line):
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_every_entry_is_shown_with_what_binds_it_and_what_is_left(fitted):
    text, entries = fitted
    rows = [_cells(line) for line in text.splitlines() if line.startswith("│")]
    shown = rows[: len(entries)]
    places = [(int(row[0]), row[2], Decimal(row[3])) for row in shown]
    assert places == [(one.ep, str(one.layer), one.allowance) for one in entries]
    for row, entry in zip(shown, entries, strict=True):
        assert Decimal(row[6]) == pytest.approx(entry.evidence.slack, abs=Decimal("0.00006"))
        assert row[5] == entry.evidence.binds.replace("batch_tokens=", "batch ")


def test_what_an_entry_rests_on_is_shown_below(fitted):
    text, entries = fitted
    rows = [_cells(line) for line in text.splitlines() if line.startswith("│")][len(entries) :]
    of_all = [one for one in entries if one.layer == "all"]
    assert len(rows) == len(of_all)
    for row, entry in zip(rows, of_all, strict=True):
        level, held = entry.evidence.estimate, entry.evidence.held_out
        assert row[:4] == [str(entry.ep), str(entry.batch_tokens), str(entry.evidence.num_batches), str(NUM_UNITS)]
        assert row[4] == f"{level.estimate:.3f} ({level.low:.3f}, {level.high:.3f})"
        above, of = (sum(getattr(one, name) for one in held if one.kind == "policy") for name in ("num_above", "num_batches"))
        assert row[8] == f"{above}/{of}"
    flat = " ".join(text.split())
    assert "chance that the next batch passes its observed max = 1/" in flat
    assert "units that reach coverage at 95% confidence" in flat


def test_no_line_is_wider_than_100_columns(fitted):
    text, _ = fitted
    assert max(map(len, text.splitlines())) <= 100
