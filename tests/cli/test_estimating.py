"""The verbs that price memory, through the option parser: what they print, what they refuse."""

import json

import pytest
import typer
from typer.testing import CliRunner

from routing.cli import estimating
from routing.core.errors import CheckFailedError, InputError
from routing.store.waves import parse_wave
from tests.estimate.waves import WAVE_TEXT

app = typer.Typer()
for verb in (estimating.estimate, estimating.wave, estimating.replay):
    app.command()(verb)


@pytest.fixture
def wave(tmp_path):
    """The published wave by rank, as a file."""
    path = tmp_path / "wave.yaml"
    path.write_text(WAVE_TEXT)
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_estimate_prints_a_table_and_with_json_one_object(wave):
    table, plain = run("estimate", wave), run("estimate", wave, "--json")
    assert (table.exit_code, plain.exit_code) == (0, 0)
    assert "26,792,462,164  26.79 GB" in table.stdout
    assert "warning: below_fitted_batch" in table.stdout  # 96,794 rows, the packaged table begins at 200,000
    body = json.loads(plain.stdout)
    assert body["total_bytes"] == 26792462164
    assert "warning: below_fitted_batch" in plain.stderr


def test_strict_and_an_ep_without_allowance_are_refused(wave):
    assert isinstance(run("estimate", wave, "--strict").exception, InputError)
    wave.write_text(WAVE_TEXT.replace("ep: 2,", "ep: 16,").replace("ep_group_is_cp_group: true", "ep_group_is_cp_group: false"))
    refused = run("estimate", wave).exception
    assert isinstance(refused, InputError)
    assert "no allowance for ep=16" in str(refused)
    assert run("estimate", wave, "--mode", "proven").exit_code == 0


def test_compare_takes_both_numbers_or_neither(wave):
    both = run("estimate", wave, "--json", "--compare", "--peak-bytes", 22_670_000_000, "--baseline-bytes", 0)
    assert round(json.loads(both.stdout)["over_fraction"], 3) == 0.182
    for some in (("--compare",), ("--compare", "--peak-bytes", 5), ("--peak-bytes", 5, "--baseline-bytes", 1)):
        assert "--compare: takes --peak-bytes N and --baseline-bytes N" in str(run("estimate", wave, *some).exception)


@pytest.mark.parametrize(("budget", "fits"), [("29.471708380", True), ("29.471708379", False), ("29.4", False)])
def test_a_budget_below_what_is_required_fails_after_the_answer(wave, budget, fits):
    done = run("estimate", wave, "--json", "--budget-gb", budget)
    assert json.loads(done.stdout)["fits"] is fits
    assert isinstance(done.exception, CheckFailedError) is not fits


@pytest.mark.parametrize("budget", ["0", "-3", "many", "nan", "1e99", "9" * 60])
def test_a_budget_that_is_none_is_refused(wave, budget):
    assert "--budget-gb: " in str(run("estimate", wave, "--budget-gb", budget).exception)


def test_an_unknown_mode_is_refused(wave):
    assert "--mode: 'guess' is neither fitted nor proven" in str(run("estimate", wave, "--mode", "guess").exception)


def test_lengths_become_a_wave_that_can_be_priced(tmp_path):
    (tmp_path / "lengths.txt").write_text("100000\n100000\n")
    laid = run(
        "wave", "--lengths", tmp_path / "lengths.txt", "--ep", 2, "--cp", 2, "--model", "qwen3.6-35b-a3b", "--adapter-rank", 8
    )
    assert parse_wave(laid.stdout, where="stdout").groups[0].attention_rows == (100000, 100000)
    (tmp_path / "wave.yaml").write_text(laid.stdout)
    assert json.loads(run("estimate", tmp_path / "wave.yaml", "--json").stdout)["allowance"]["warnings"] == []


def test_a_replay_agrees_or_names_the_term(wave, tmp_path):
    recorded = tmp_path / "estimate.json"
    recorded.write_text(run("estimate", wave, "--json").stdout)
    assert "the same 26,792,462,164 bytes in 11 terms" in run("replay", wave, "--recorded", recorded).stdout
    wave.write_text(WAVE_TEXT.replace("48600", "48601"))
    moved = run("replay", wave, "--recorded", recorded).exception
    assert isinstance(moved, CheckFailedError)
    assert "boundaries: 7,611,514,880 bytes recorded, 7,611,596,800 priced now (+81,920)" in str(moved)
