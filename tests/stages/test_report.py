"""The report is one page that loads nothing and says the same numbers as `routing imbalance` and the table."""

import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest
import typer

from routing.cli import reporting
from routing.core.allowance import entries_hash
from routing.core.errors import InputError, StorageError
from routing.query.imbalance import imbalance_rows
from routing.stages.fit import fit
from routing.stages.report import ReportRequest, report
from routing.store.allowances import read_table, write_table
from tests.stages.reported import SHAPE, reported_runs
from tests.stores import write_tiny_run

VOID = {"meta", "br", "wbr"}
LOADING = {"src", "href", "srcset", "data", "poster", "action", "xlink:href", "background"}


def _report(folders, allowances, out, **more):
    return report(ReportRequest(runs=tuple(folders), allowances=allowances, out=out, **more))


class Page(HTMLParser):
    """Tags with their attributes, the text of tables row by row, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self._open, self._cell = [], [], [], None
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(" ".join(self._cell.split()))
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    return reported_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def run_folders(reported):
    return reported[0]


@pytest.fixture(scope="module")
def table_file(reported):
    return reported[1]


@pytest.fixture(scope="module")
def text(run_folders, table_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages") / "report.html"
    _report(run_folders, table_file, out, command=("report", "run0", "--out", "a b.html"))
    return out.read_text(encoding="utf-8")


def test_nothing_is_loaded_and_nothing_runs(text):
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image"}
    links = [attrs.pop("href") for attrs in page.named("a")]
    assert len(links) >= 5
    assert all(link.startswith("#") for link in links)  # to a place on this page
    assert not {name for _, attrs in page.tags for name in attrs if name in LOADING or name.startswith("on")}
    assert "://" not in text
    assert not re.search(r"url\(|@import", text)
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in page.named(
        "meta"
    )


def test_every_picture_has_a_title_and_a_description(text):
    page = Page(text)
    assert [one["id"].removeprefix("figure-") for one in page.named("figure")] == [
        *("sizes", "ranks", "statistics", "heat", "spread", "layers")
    ]
    drawings = page.named("svg")
    # two EP sizes; the heat map has a panel for each of two runs, the distributions one for each of two batch sizes besides
    assert len(drawings) == 2 + 2 + 2 + 2 + 2 * 2 + 2
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert all(set(one["aria-labelledby"].split()) <= set(ids) and one["role"] == "img" for one in drawings)


def test_tables_have_captions_and_headers(text):
    page = Page(text)
    assert len(page.named("caption")) == len(page.named("table")) >= 8
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.named("th"))


@pytest.mark.fault(
    "HTML in a label",
    how="a policy named <script>alert(1)</script>",
    tries=1,
    outcome="escaped everywhere in the page",
)
def test_names_are_escaped(text):
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_page_is_small_and_made_for_light_dark_and_paper(text):
    assert len(text.encode()) < 3_000_000
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_the_worst_layer_table_has_the_numbers_of_the_query(text, run_folders):
    from routing.store.run import open_run

    rows = Page(text).rows
    for folder in run_folders:
        found, _ = imbalance_rows(open_run(folder), eps=(2, 4), batch_sizes=(60, 20))
        for row in found:
            ratios = [f"{row[name]:.4f}" for name in ("worst_imbalance", "mean_over_layers", "pooled_over_layers")]
            places = [str(row[name]) for name in ("worst_layer", "worst_batch", "worst_rank", "num_batches")]
            wanted = [str(row["ep"]), str(row["batch_tokens"]), *ratios, *places]
            assert any([*one[:5], *one[6:10]] == wanted for one in rows), wanted


def held_out_words(evidence):
    """What an entry's held-out parts and its batches say of it, in the page's words; tiny runs have under 59 batches."""
    parts = evidence.held_out or ()
    halves = [one.num_above for one in parts if one.kind == "units"]
    if any(halves):
        return "failed held-out"
    above = {one.kind for one in parts if one.num_above}
    failed = [word for kind, word in (("policy", "policy"), ("stratum", "source")) if kind in above]
    fewest = min(one.num_batches for one in evidence.policies)
    others = {one.method for one in parts if one.kind == "units"} - {evidence.method}
    by = f" (fitted by {', '.join(others)})" if others else ""
    return "; ".join(
        [
            f"held-out halves hold{by}" if halves else "no held-out test",
            *([f"a held-out {' and '.join(failed)} failed"] if failed else []),
            f"only {fewest} batch{'' if fewest == 1 else 'es'} a policy (59 cover 95%)",
        ]
    )


def test_every_entry_is_shown_with_its_evidence(text, table_file):
    rows = Page(text).rows
    for entry in read_table(table_file).entries:
        most = entry.evidence.observed_max
        place = f"EP {entry.ep}, {entry.batch_tokens} tokens"
        stands = f"fits its own data; {held_out_words(entry.evidence)}"
        row = next(one for one in rows if one[:3] == [place, str(entry.allowance), stands])
        assert row[3] == f"{most.imbalance:.4f}"
        assert f"layer {most.layer}, batch {most.batch}, rank {most.rank}" in row[4]
        assert row[-2:] == [str(entry.evidence.num_batches), str(entry.evidence.num_units)]
    assert sum(one[-1] == "equal" for one in rows if one) == 2 * len(read_table(table_file).entries)


def test_the_honest_sentences_and_the_provenance_are_there(text, run_folders, table_file):
    from routing.store.run import open_run

    table = read_table(table_file)
    claimed = table.entries[0].evidence.policies[0]
    units, batches = claimed.num_units, claimed.num_batches
    reaching = [str(table.entries[0].batch_tokens), claimed.label, str(batches)]
    chance = [str(units), f"1/{batches + 1}"]
    assert any((row[:3], row[4:6]) == (reaching, chance) for row in Page(text).rows)
    for words in (
        "Only min(EP, E/k) is proven",
        "belongs to its model, its expert placement",
        "Not production numbers: by the names of policy or corpus one is marked toy",
    ):
        assert words in text
    for folder in run_folders:
        manifest = open_run(folder).manifest
        assert manifest.content_hash[:12] in text
        assert manifest.corpus.corpus_hash[:12] in text
        assert manifest.policy.weights_sha256[:12] in text
    assert table.content_hash[:12] in text
    assert "routing report run0 --out &#39;a b.html&#39;" in text
    assert "GROUP BY ALL" in text  # the queries themselves


def test_a_table_that_does_not_hold_is_said_first(run_folders, table_file, tmp_path):
    table = read_table(table_file)
    lowest = replace(table.entries[0], allowance=Decimal("1.0"))
    entries = (lowest, *table.entries[1:])
    path = tmp_path / "low.yaml"
    write_table(
        path, replace(table, entries=entries, content_hash=entries_hash(table.model, table.placement, entries, table.generated))
    )
    answer = _report(run_folders, path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert answer.headline == "1 of 4 allowances does not hold."
    assert text.index(answer.headline) < text.index("Batches above their allowance") < text.index("What was measured")
    assert "Proposed by headroom-v1" in text


def test_runs_without_a_full_batch_give_a_page_of_dashes_that_claims_nothing(run_folders, table_file, tmp_path):
    short = write_tiny_run(
        tmp_path / "short",
        paths=[[0]],
        segment_tokens=[4],
        loads={(0, layer): [1] * 8 for layer in SHAPE["layers"]},
        **SHAPE,
    )
    answer = _report([short.folder], table_file, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert answer.headline == "These runs say nothing about this table: no full batch at any of its batch sizes."
    assert any("short: no full batch at ep=2 batch_tokens=60, the run holds 4 tokens" in line for line in answer.warnings)
    assert "None" not in text
    assert Page(text).named("svg") == []


def test_the_usual_batch_sizes_are_shown_where_a_run_fills_one(tmp_path):
    sizes = [1500] * 4
    loads = {(segment, layer): [375] * 8 for segment in range(4) for layer in SHAPE["layers"]}
    run = write_tiny_run(tmp_path / "run", paths=[[one] for one in range(4)], segment_tokens=sizes, loads=loads, **SHAPE)
    fit([run.folder], out=tmp_path / "a.yaml", eps=(2,), batch_sizes=(1500,), order="corpus")
    answer = _report([run.folder], tmp_path / "a.yaml", tmp_path / "report.html")
    shown = {one[1] for one in Page((tmp_path / "report.html").read_text()).rows if len(one) == 12 and one[0] == "2"}
    assert shown == {"2k", "1.5k"}  # 6,000 tokens fill batches of 2,000 and none of 20,000
    assert not any("20000" in line for line in answer.warnings)


def test_runs_of_another_model_are_refused_and_nothing_is_written(table_file, tmp_path):
    other = write_tiny_run(tmp_path / "run", paths=[[0]], segment_tokens=[4], loads={(0, 0): [2, 2]}, num_experts=2, top_k=1)
    with pytest.raises(InputError, match="another model"):
        _report([other.folder], table_file, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_place_that_cannot_be_written_is_said(run_folders, table_file, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="not written"):
        _report(run_folders, table_file, tmp_path / "file" / "report.html")


def test_the_verb_prints_the_verdict(run_folders, table_file, tmp_path, capsys):
    app = typer.Typer()
    app.command()(reporting.report)
    out = tmp_path / "report.html"
    app([str(run_folders[0]), "--allowances", str(table_file), "--out", str(out)], standalone_mode=False)
    out_text = capsys.readouterr().out
    assert out_text.startswith("Fits the runs it was made from; no held-out half was tried at EP 2 and EP 4 with 60 tokens.\n")
    assert "\n- What to do: Use these numbers only" in out_text
    assert "\n- 4 allowances at EP 2 and 4 were compared" in out_text
    assert out.exists()
