"""The rules judged on a tiny store of two policies: fresh batches come from other units, and the table says what was counted."""

import sys

import numpy as np
import pytest

from pipelines import calibrate_rules
from pipelines.calibrate_rules import FRESH, RULES, calibrate, heading, in_order, read_counts
from pipelines.publish_calibration import sizes_of
from routing.fit import resample
from routing.fit.recut import real_batches
from tests.stores import random_loads, write_tiny_run

NUM_UNITS = 80


def _folders(tmp_path):
    """Two policies over 80 units of two segments of 8 tokens behind one shared prompt of 4."""
    tokens = [4] + [8] * (2 * NUM_UNITS)
    paths = [[0, 1 + 2 * unit, 2 + 2 * unit] for unit in range(NUM_UNITS)]
    tree = {"paths": paths, "segment_tokens": tokens, "num_experts": 8, "top_k": 2, "layers": (1, 3)}
    for seed, label in enumerate(("base", "tuned")):
        loads = random_loads(np.random.default_rng(seed), segment_tokens=tokens, layers=(1, 3), num_experts=8, top_k=2)
        write_tiny_run(tmp_path / label, loads=loads, label=label, **tree)
    return [tmp_path / "base", tmp_path / "tuned"]


def test_the_script_prints_every_rule_of_every_policy(tmp_path, monkeypatch, capsys):
    sizes = ["--batch-tokens", "20", "--ep", "2,4", "--repetitions", "3", "--resampled-batches", "60", "--pools", "8"]
    monkeypatch.setattr(sys, "argv", ["calibrate_rules", *map(str, _folders(tmp_path)), *sizes])
    for name in ("NUM_BATCHES", "NUM_POOLS"):
        monkeypatch.setattr(resample, name, getattr(resample, name))  # put back afterwards
    calibrate_rules.main()
    said, nothing, *lines = capsys.readouterr().out.splitlines()
    assert (said, nothing) == (heading(batch_tokens=20, num_fitted=17, seed=20261130, num=3, asked=3), "")
    assert sizes_of(said) == (20, 17)
    assert len(lines) == 2 + 2 * 2 * len(RULES)
    assert all(line.count("|") == lines[0].count("|") for line in lines)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    assert [(row[1], row[2]) for row in cells[:: len(RULES)]] == [("base", "2"), ("base", "4"), ("tuned", "2"), ("tuned", "4")]
    assert [row[3] for row in cells[: len(RULES)]] == list(RULES)
    by_rule = {row[3]: row[-2] for row in cells[: len(RULES)]}
    assert (by_rule["H"], by_rule["S"]) == ("3 of 3", "0 of 3")  # one file: no stratum to stress


def test_the_same_seed_judges_the_same_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(resample, "NUM_BATCHES", 40)
    monkeypatch.setattr(resample, "NUM_POOLS", 4)
    policies = read_counts(_folders(tmp_path), batch_tokens=20, eps=(2,))
    twice = [list(calibrate(policies, batch_tokens=20, eps=(2,), numbers=[1, 2], seed=5)) for _ in range(2)]
    assert len(twice[0]) == 2 * 2
    for one, again in zip(*twice, strict=True):
        assert {rule: bound for rule, bound in one.bounds.items() if bound == bound} == {
            rule: bound for rule, bound in again.bounds.items() if bound == bound
        }
        assert set(one.fresh) == set(FRESH)
        assert all(np.array_equal(one.fresh[kind], again.fresh[kind]) for kind in FRESH)
        # Half of 80 units in 4 orders; each unit with the prompt is a batch: 4 + 8 + 8 tokens.
        assert len(one.fresh["same mix"]) == 4 * 40
        assert one.bounds["default"] >= one.bounds["observed max"]


def _said(tmp_path, monkeypatch, capsys, *options):
    """(exit code, what stderr holds) of the script over the two runs."""
    monkeypatch.setattr(sys, "argv", ["calibrate_rules", *map(str, _folders(tmp_path)), *options])
    for name in ("NUM_BATCHES", "NUM_POOLS"):
        monkeypatch.setattr(resample, name, getattr(resample, name))
    with pytest.raises(SystemExit) as stopped:
        calibrate_rules.main()
    return stopped.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ep", "2,x"], "'x' is not a whole number"),
        (["--ep", "2,2"], "names a size twice"),
        (["--ep", "3"], "3"),
        (["--batch-tokens", "0"], "'0' is not a whole number from 1 on"),
        (["--fitted-batches", "9"], "--fitted-batches 9: the default takes 10 or more"),
        (["--pools", "-1"], "'-1' is not a whole number"),
        (["--seed", "x"], "'x' is not a whole number"),
        (["--batch-tokens", "20", "--ep", "2", "--fitted-batches", "1000"], "no repetition has 1000 full batches of 20 tokens"),
    ],
)
def test_what_can_not_be_tried_is_told_and_nothing_is_printed(options, said, tmp_path, monkeypatch, capsys):
    code, error = _said(tmp_path, monkeypatch, capsys, *options)
    assert code == 2
    assert said in error.splitlines()[-1]


def test_as_many_batches_are_fitted_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(resample, "NUM_BATCHES", 40)
    monkeypatch.setattr(resample, "NUM_POOLS", 4)
    policies = read_counts(_folders(tmp_path), batch_tokens=20, eps=(2,))
    seen = []
    bounds = calibrate_rules._bounds
    monkeypatch.setattr(calibrate_rules, "_bounds", lambda values, *levels: seen.append(len(values)) or bounds(values, *levels))
    for num_fitted in (12, 30):
        assert list(calibrate(policies, batch_tokens=20, eps=(2,), numbers=[1], seed=5, num_fitted=num_fitted))
    assert seen == [12, 12, 30, 30]


def test_a_rule_that_could_not_be_fitted_is_not_another_one(tmp_path, monkeypatch):
    """Fewer than 20 units: `routing fit` would take headroom-v1, which has a row of its own."""
    policies = read_counts(_folders(tmp_path), batch_tokens=20, eps=(2,))
    (one, _) = calibrate(policies, batch_tokens=20, eps=(2,), numbers=[1], seed=5, num_fitted=12)
    assert np.isnan([one.bounds[rule] for rule in ("H", "R", "default", "default, up to 0.1")]).all()
    assert one.bounds["headroom"] > 1


def test_another_order_keeps_every_trajectory_whole(tmp_path):
    counts = read_counts(_folders(tmp_path)[:1], batch_tokens=20, eps=(2,))["base"]
    other = in_order(counts, np.random.default_rng(3))
    assert sorted(other.segment_ids.tolist()) == sorted(counts.segment_ids.tolist())
    assert other.trajectory_ids.tolist() != counts.trajectory_ids.tolist()
    changes = np.count_nonzero(np.diff(other.trajectory_ids))
    assert changes == NUM_UNITS - 1
    assert other.segment_ids.tolist() != counts.segment_ids.tolist()
    assert real_batches(other, batch_tokens=20, eps=(2,)).num_batches == NUM_UNITS


def test_runs_over_other_trajectories_are_refused(tmp_path):
    first = _folders(tmp_path)[0]
    tree = {"paths": [[0], [1]], "segment_tokens": [8, 8], "num_experts": 8, "top_k": 2, "layers": (1, 3)}
    loads = random_loads(np.random.default_rng(1), segment_tokens=[8, 8], layers=(1, 3), num_experts=8, top_k=2)
    write_tiny_run(tmp_path / "small", loads=loads, label="small", **tree)
    with pytest.raises(SystemExit, match="small: other trajectories"):
        read_counts([first, tmp_path / "small"], batch_tokens=8, eps=(2,))
