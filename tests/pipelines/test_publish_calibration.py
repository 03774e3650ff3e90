"""What a calibration printed becomes data that the report shows."""

import re
import sys

import pytest

from pipelines import publish_calibration
from pipelines.calibrate_rules import heading
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
    options = [f"--{name}={value}" for name, value in {"method": "one", "date": "2026-11-30", "source": "here", **asked}.items()]
    monkeypatch.setattr(sys, "argv", ["publish_calibration", str(printed), f"--out={out}", *options])
    publish_calibration.main()


def _text(*, batch_tokens=2_000, num_fitted=170, table=PRINTED):
    return heading(batch_tokens=batch_tokens, num_fitted=num_fitted, seed=5, num=195, asked=200) + "\n\n" + table


def test_only_rows_of_the_same_method_sizes_and_source_are_replaced(tmp_path, monkeypatch):
    printed, out = tmp_path / "printed.md", tmp_path / "c.csv"
    for sizes, changes in (
        ({}, {}),
        ({}, {"source": "there"}),
        ({"batch_tokens": 20_000, "num_fitted": 17}, {}),
        ({"num_fitted": 85}, {}),
        ({}, {"method": "two"}),
        ({"table": PRINTED.replace("0.338", "0.125")}, {}),
    ):
        printed.write_text(_text(**sizes))
        _publish(monkeypatch, printed, out, **changes)
    found = [(one.method, one.source, one.batch_tokens, one.num_fitted_batches, one.same_mix) for one in read_calibrations(out)]
    assert found == [
        ("one", "there", 2_000, 170, 0.00338),
        ("one", "here", 20_000, 17, 0.00338),
        ("one", "here", 2_000, 85, 0.00338),
        ("two", "here", 2_000, 170, 0.00338),
        ("one", "here", 2_000, 170, 0.00125),
    ]


NOTHING = "0 rows of the rule"
ODD = {
    "no heading": (PRINTED, "0 headings"),
    "two tables": (_text() + _text(), "2 headings"),
    "its rows twice": (_text(table=PRINTED * 2), "2 rows .*, 1 places"),
    "no row": (_text(table=PRINTED.split("|---", maxsplit=1)[0]), NOTHING),
    "no other strata": (_text(table=PRINTED.replace("0.456 (0.000 to 2.289)", "none")), "'none' is no figure"),
    "never fitted": (_text(table=PRINTED.replace("0.338 (0.000 to 3.156)", "none")), "'none' is no figure"),
    "not a number": (_text(table=PRINTED.replace("0.98 (", "nan (")), "'nan' is no figure"),
    "below zero": (_text(table=PRINTED.replace("0.338 (", "-3 (")), "'-3' is no figure"),
    "half an EP": (_text(table=PRINTED.replace("| 4 |", "| x |")), "'x' is no figure"),
}


@pytest.mark.parametrize("name", list(ODD))
def test_what_no_calibration_printed_changes_nothing_and_is_told_in_one_line(name, tmp_path, monkeypatch, capsys):
    text, said = ODD[name]
    printed, out = tmp_path / "printed.md", tmp_path / "c.csv"
    printed.write_text(_text())
    _publish(monkeypatch, printed, out)
    before = out.read_bytes()
    printed.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        _publish(monkeypatch, printed, out)
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert re.search(said, error)
    assert out.read_bytes() == before


@pytest.mark.parametrize("options", [{"date": "yesterday"}, {"method": ""}, {"source": " "}, {"source": "two\nlines"}])
def test_options_that_say_nothing_are_refused(options, tmp_path, monkeypatch):
    printed, out = tmp_path / "printed.md", tmp_path / "c.csv"
    printed.write_text(_text())
    with pytest.raises(SystemExit) as stopped:
        _publish(monkeypatch, printed, out, **options)
    assert stopped.value.code == 2
    assert not out.exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_what_can_not_be_read_is_told(content, tmp_path, monkeypatch, capsys):
    printed = tmp_path / "printed.md"
    if content is not None:
        printed.write_bytes(content)
    with pytest.raises(SystemExit):
        _publish(monkeypatch, printed, tmp_path / "c.csv")
    assert "printed.md: can't be read" in capsys.readouterr().err


def test_a_share_that_is_none_is_refused_with_its_line(tmp_path):
    (tmp_path / "c.csv").write_text(csv_text(list(calibrations(PRINTED, **WORDS))).replace("0.00338", "many"))
    with pytest.raises(InputError, match=r"c\.csv:2: same_mix: 'many' is no share"):
        read_calibrations(tmp_path / "c.csv")
