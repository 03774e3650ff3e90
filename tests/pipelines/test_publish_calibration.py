"""What a calibration printed becomes data that the report shows."""

import sys

import pytest

from pipelines import publish_calibration
from pipelines.publish_calibration import TARGET, calibrations, csv_text
from routing.core.errors import InputError
from routing.fit.strat_boot import METHOD
from routing.store.calibrations import read_calibrations
from tests.conftest import REPOSITORY

WORDS = {"method": "strat-boot-v1", "date": "2026-11-30", "source": "somewhere", "batch_tokens": 20_000, "num_fitted": 17}
PRINTED = """\
| policy | EP | rule | same mix, % | one stratum, % | other policy, % | other strata, % | excess / true | fitted in |
|---|---|---|---|---|---|---|---|---|
| trained | 4 | default | 0.454 (0.000 to 3.636) | 0.804 (0.000 to 4.798) | 0.021 (0.000 to 0.000) | 0.603 (0.000 to 2.500) | 0.91 (0.64 to 1.91) | 195 of 195 |
| trained | 4 | default, up to 0.1 | 0.338 (0.000 to 3.156) | 0.436 (0.000 to 3.869) | 0.008 (0.000 to 0.000) | 0.456 (0.000 to 2.289) | 0.98 (0.71 to 1.95) | 195 of 195 |
"""  # noqa: E501


def test_the_rounded_default_is_taken_and_percents_become_shares(tmp_path):
    (one,) = calibrations(PRINTED, **WORDS)
    assert (one.policy, one.ep, one.num_fitted_batches, one.num_repetitions) == ("trained", 4, 17, 195)
    assert (one.same_mix, one.one_stratum, one.other_strata, one.excess) == (0.00338, 0.00436, 0.00456, 0.98)
    (tmp_path / "c.csv").write_text(csv_text([one]))
    assert read_calibrations(tmp_path / "c.csv") == (one,)


def test_the_committed_file_is_what_the_log_has():
    log = (REPOSITORY / "docs" / "LOG.md").read_text()
    logged = {_figures(one) for one in calibrations(log, **WORDS)}
    committed = read_calibrations(REPOSITORY / TARGET)
    assert {one.method for one in committed} == {"strat-boot-v1", "strat-boot-v2", METHOD}
    assert {_figures(one) for one in committed} <= logged


def _figures(one):
    return (one.policy, one.ep, one.num_repetitions, one.same_mix, one.one_stratum, one.other_strata, one.excess)


def _publish(monkeypatch, printed, out, **asked):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    monkeypatch.setattr(sys, "argv", ["publish_calibration", str(printed), f"--out={out}", *options])
    publish_calibration.main()


def test_only_rows_of_the_same_method_size_and_source_are_replaced(tmp_path, monkeypatch):
    printed, out = tmp_path / "printed.md", tmp_path / "c.csv"
    printed.write_text(PRINTED)
    asked = {"method": "one", "date": "2026-11-30", "source": "here", "batch_tokens": 2_000, "fitted_batches": 170}
    for changes in ({}, {"source": "there"}, {"batch_tokens": 20_000, "fitted_batches": 17}, {"method": "two"}):
        _publish(monkeypatch, printed, out, **{**asked, **changes})
    printed.write_text(PRINTED.replace("0.338", "0.125"))
    _publish(monkeypatch, printed, out, **asked)
    found = [(one.method, one.source, one.batch_tokens, one.num_fitted_batches, one.same_mix) for one in read_calibrations(out)]
    assert found == [
        ("one", "there", 2_000, 170, 0.00338),
        ("one", "here", 20_000, 17, 0.00338),
        ("two", "here", 2_000, 170, 0.00338),
        ("one", "here", 2_000, 170, 0.00125),
    ]


def test_a_share_that_is_none_is_refused_with_its_line(tmp_path):
    (tmp_path / "c.csv").write_text(csv_text(list(calibrations(PRINTED, **WORDS))).replace("0.00338", "many"))
    with pytest.raises(InputError, match=r"c\.csv:2: same_mix: 'many' is no share"):
        read_calibrations(tmp_path / "c.csv")
