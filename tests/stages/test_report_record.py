"""The page, its JSON and its Markdown say the same, and every number can be had again from the run's own files."""

import html
import json
from dataclasses import replace
from decimal import Decimal

import duckdb
import jsonschema
import pytest

from pipelines.write_docs import AUDIT_SCHEMA_ID, SCHEMAS
from routing.audit.pull_report import MARK
from routing.audit.record_rows import AuditRecord
from routing.core.allowance import entries_hash
from routing.core.errors import InputError
from routing.stages.peaks import PeakFiles
from routing.stages.report import ReportRequest, report
from routing.store.allowances import read_table, write_table
from routing.store.run import open_run
from routing.store.table_schema import record_schema_text
from tests.conftest import REPOSITORY
from tests.stages.reported import BATCH_SIZES, EPS, EVIL, SHAPE, reported_runs
from tests.stages.test_report import Page, held_out_words

PUBLISHED = REPOSITORY / "data" / "published"
PEAKS = PeakFiles(peaks=PUBLISHED / "peaks.csv", waves=PUBLISHED / "waves.yaml")
TABLE = REPOSITORY / "allowances.yaml"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(request, answer, rows of the page, its text) of two runs against an earlier table with one lower entry."""
    folder = tmp_path_factory.mktemp("record")
    runs, table_file = reported_runs(folder)
    table = read_table(table_file)
    entries = (replace(table.entries[0], allowance=Decimal("1.0")), *table.entries[1:])
    hashed = entries_hash(table.model, table.placement, entries, table.generated)
    write_table(folder / "earlier.yaml", replace(table, entries=entries, content_hash=hashed))
    request = ReportRequest(
        runs=tuple(runs),
        allowances=table_file,
        against=folder / "earlier.yaml",
        out=folder / "report.html",
        markdown=folder / "report.md",
    )
    answer = report(request)
    text = request.out.read_text(encoding="utf-8")
    return request, answer, Page(text).rows, text


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    out = tmp_path_factory.mktemp("published") / "report.html"
    answer = report(ReportRequest(runs=(), allowances=TABLE, peaks=PEAKS, out=out))
    return answer, Page(out.read_text(encoding="utf-8")).rows


def test_the_committed_schema_is_what_the_program_says_and_takes_both_bodies(made, published):
    text = (REPOSITORY / SCHEMAS / AUDIT_SCHEMA_ID).read_text()
    assert text == record_schema_text(AuditRecord, AUDIT_SCHEMA_ID), "run `make docs`"
    for answer in (made[1], published[0]):
        body = json.loads(json.dumps(answer.body, allow_nan=False))
        jsonschema.Draft202012Validator(json.loads(text)).validate(body)


def test_every_allowance_of_the_json_is_in_the_page_with_its_numbers(made):
    request, answer, rows, _ = made
    entries = read_table(request.allowances).entries
    assert len(answer.body["allowances"]) == len(EPS) * len(BATCH_SIZES)
    for one in answer.body["allowances"]:
        row = next(row for row in rows if row[:2] == [f"EP {one['ep']}, {one['batch_tokens']} tokens", f"{one['allowance']:.1f}"])
        entry = next(found for found in entries if (found.ep, found.batch_tokens) == (one["ep"], one["batch_tokens"]))
        said = held_out_words(entry.evidence)
        assert (row[2], one["outcome"]) == (f"fits its own data; {said}", "holds")
        assert not one["held_out_above"]
        assert one["standing"] == ("untested" if one["held_out_above"] is None else "limited")
        assert (row[3], row[5], row[7]) == (f"{one['observed_max']:.4f}", f"{one['slack']:.4f}", f"{one['raw_bound']:.4f}")
        cells = [cell for row in rows if row[0] == f"EP {one['ep']}" for cell in row]
        assert any(cell.startswith(f"{one['allowance']:.1f}worst seen: {one['seen']:.2f}, in") for cell in cells)


def test_the_worsts_of_the_json_are_in_the_page(made):
    _, answer, rows, _ = made
    names = ("worst_imbalance", "mean_over_layers", "pooled_over_layers", "uniform")
    for one in _worsts(answer):
        wanted = [str(one["ep"]), str(one["batch_tokens"]), *(f"{one[name]:.4f}" for name in names)]
        assert any(row[: len(wanted)] == wanted for row in rows)


def test_the_pictures_show_the_numbers_of_the_json(made):
    _, answer, _, text = made
    chosen = answer.body["reference_batch_tokens"]
    for run in answer.body["runs"]:
        for one in run["layers"]:
            if one["batch_tokens"] == chosen:
                assert f">{one['worst_imbalance']:.2f}<" in text
        for one in run["worsts"]:
            (batches,) = (batches["imbalances"] for batches in run["batches"] if _at(batches) == _at(one))
            assert (len(batches), max(batches)) == (one["num_batches"], one["worst_imbalance"])
            most = max((row for row in run["shares"] if _at(row) == _at(one)), key=lambda row: row["share"])
            assert (most["share"], most["layer"], most["rank"]) == tuple(
                one[name] for name in ("worst_imbalance", "worst_layer", "worst_rank")
            )


def _worsts(answer):
    return [one for run in answer.body["runs"] for one in run["worsts"]]


def _at(row):
    return row["ep"], row["batch_tokens"]


def test_every_layer_of_both_policies_stands_beside_its_interval(made):
    _, answer, rows, _ = made
    (pair,) = answer.body["pairs"]
    moves = pair["layers"]
    assert pair["is_paired"]
    assert {(one["ep"], one["layer"]) for one in moves} == {(ep, layer) for ep in EPS for layer in SHAPE["layers"]}
    for one in moves:
        ratios = [f"{one['base_imbalance']:.4f}", f"{one['other_imbalance']:.4f}"]
        row = next(row for row in rows if row[:4] == [str(one["ep"]), str(one["layer"]), *ratios])
        assert row[5:7] == [f"{one['low']:+.4f}", f"{one['high']:+.4f}"]
        assert row[7] == ("not told apart" if not one["is_beyond"] else "less even" if one["low"] > 0 else "more even")
        assert (row[7] == "not told apart") is (one["low"] <= 0 <= one["high"]) is not one["is_beyond"]


def test_what_moved_against_the_earlier_table_is_said(made):
    _, answer, rows, _ = made
    changed = [one for one in answer.body["changes"] if one["change"] != "same"]
    first = answer.body["allowances"][0]
    assert changed == [
        {
            **{name: first[name] for name in ("ep", "batch_tokens", "layer", "allowance")},
            "change": "raised",
            "previous": 1.0,
            "lost_support": (),
        }
    ]
    assert any(row[1:5] == ["1.0", f"{first['allowance']:.1f}", f"{first['allowance'] - 1:+.1f}", "raised"] for row in rows)


def test_a_pasted_script_gives_the_page_s_numbers_again(made):
    request, answer, _, _ = made
    for run in answer.body["runs"]:
        folder = next(one for one in request.runs if one.name == run["run"])
        script, query = _pasted(request, run["name"]), _query("imbalance")
        con = duckdb.connect(config={"file_search_path": str(folder)})
        con.execute(script)
        found = con.sql(query)
        columns = found.columns
        again = [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
        wanted = [one for one in run["worsts"] if one["num_batches"]]
        assert len(again) == len(wanted)
        for one in wanted:
            mine = next(row for row in again if _at(row) == _at(one))
            assert {name: one[name] for name in mine} == mine


def _pasted(request, name):
    """The text of the page's script of one run, as a browser would copy it."""
    text = request.out.read_text(encoding="utf-8")
    part = text[text.index(f"<summary>Script of {html.escape(name)}</summary>") :]
    return html.unescape(part[part.index("<code>") + 6 : part.index("</code>")])


def _query(name):
    return (REPOSITORY / "routing" / "query" / "sql" / f"{name}.sql").read_text()


def test_the_markdown_is_short_and_its_names_are_inert(made):
    request, answer, _, _ = made
    text = request.markdown.read_text(encoding="utf-8")
    assert text == answer.markdown
    assert text.startswith(MARK)
    assert EVIL not in text
    assert "<script" not in text
    for one in answer.body["allowances"]:
        assert f"| {one['ep']} | {one['batch_tokens']} | all | **{one['allowance']:.1f}** |" in text
    assert len(text.splitlines()) < 60


def test_a_file_of_somebody_elses_is_left_alone(made, tmp_path):
    request = made[0]
    note = tmp_path / "notes.md"
    note.write_text("mine")
    with pytest.raises(InputError, match="not replaced"):
        report(replace(request, out=tmp_path / "report.html", markdown=note))
    assert note.read_text() == "mine"
    assert not (tmp_path / "report.html").exists()


def test_nothing_of_a_unit_or_trajectory_is_in_page_json_or_markdown(made):
    request, answer, _, text = made
    (part,) = open_run(request.runs[0]).part_paths("trajectories")
    names = duckdb.sql(f"SELECT unit, trajectory_hash FROM READ_PARQUET('{part}')").fetchall()
    said = text + json.dumps(answer.body) + answer.markdown
    assert not [one for row in names for one in row if one in said]


def test_the_published_case_is_priced_beside_its_peak(published):
    answer, rows = published
    (one,) = answer.body["peaks"]
    assert (one["estimate_bytes"], one["measured_bytes"]) == (26792462164, 22670000000)  # tests/estimate/test_published_case.py
    assert one["without_hybridep_bytes"] == 26792462164 - 1053532160
    row = next(row for row in rows if row[0] == "EP2/CP2 real data")
    assert row[1:9] == ["cold", "2 / 2", "1.4", "26.79 GB", "22.67 GB", "+18.2%", "+13.5%", "over the peak"]
    assert row[9].startswith("published, not measured here")
    by_rank = {rank: sum(term["bytes"] for term in one["alive"] if term["rank"] == rank) for rank in (0, 1)}
    assert by_rank == {0: 26031437364, 1: 26792462164}
    assert answer.body["limits"]["eps_without_peak"] == (4, 8)


def test_a_table_without_runs_is_not_said_to_hold(published):
    answer, _ = published
    assert answer.body["verdict"]["kind"] == "open"
    assert answer.headline.startswith("No measured run was given")


def test_an_estimate_under_its_peak_turns_the_verdict_red(tmp_path):
    text = PEAKS.peaks.read_text().replace("22670000000", "25800000000")  # above 25,738,930,004 without the buffer, below with it
    (tmp_path / "peaks.csv").write_text(text)
    request = ReportRequest(
        runs=(), allowances=TABLE, peaks=replace(PEAKS, peaks=tmp_path / "peaks.csv"), out=tmp_path / "report.html"
    )
    answer = report(request)
    assert answer.body["verdict"]["kind"] == "fails"
    assert answer.headline == "1 of 1 estimate is under the measured peak."
    assert answer.body["peaks"][0]["is_under"]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("EP2/CP2", "EP4/CP2", "peaks.csv:2: wave 'EP4/CP2 real data' is not in"),
        (",cold,", ",warm,", "peaks.csv:2: warm, and its wave says first_gradient_execution: true"),
        (",cold,", ",tepid,", "peaks.csv:2: state: 'tepid' is neither cold nor warm"),
        (",0,22670000000,", ",5,5,", "peaks.csv:2: peak_bytes: 5 is not above baseline_bytes 5"),
        (",0,", ",none,", "peaks.csv:2: baseline_bytes: 'none' is not a whole number"),
        ("wave,baseline_bytes", "wave,base", "peaks.csv:1: the columns are not"),
    ],
)
def test_a_peak_that_cannot_be_compared_is_one_line(tmp_path, old, new, what):
    (tmp_path / "peaks.csv").write_text(PEAKS.peaks.read_text().replace(old, new, 1))
    files = replace(PEAKS, peaks=tmp_path / "peaks.csv")
    with pytest.raises(InputError) as refused:
        report(ReportRequest(runs=(), allowances=TABLE, peaks=files, out=tmp_path / "report.html"))
    assert what in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wave_of_another_model_than_the_table_is_refused(made, tmp_path):
    request = made[0]
    with pytest.raises(InputError, match="EP2/CP2 real data"):
        report(replace(request, peaks=PEAKS, out=tmp_path / "report.html", markdown=None))
