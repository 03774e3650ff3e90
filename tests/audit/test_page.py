"""The page escapes what it is given and leaves nothing undefined."""

import re
from dataclasses import replace
from importlib.resources import files

from routing.audit.claims import compare
from routing.audit.facts import CorpusFile, ShareRow
from routing.audit.page import CorpusLine, breakable, corpora, layer_table, page, short
from tests.audit.made import cut, entry, facts, held_out, judged, policy_evidence, table

TEMPLATE = files("routing.audit").joinpath("report.html.jinja").read_text(encoding="utf-8")
EVIL = "<script>alert(1)</script>"


def _page(names=("base",), *, rows=((0, 0, 25),), **more):
    one = entry("1.4", policies=())
    found = cut(*rows)
    return page(TEMPLATE, facts(table(one), [compare(one, found)], names=names, **more))


def test_names_are_escaped_everywhere():
    text = _page((EVIL, "base"))
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_verdict_comes_before_every_table_and_chart():
    text = _page()
    assert 0 < text.index("Every allowance holds") < text.index("<table") < text.index("<svg")


def test_what_is_missing_is_a_dash_and_never_a_word_of_the_program():
    text = _page(rows=(), num_batches=0)
    assert "None" not in text
    assert "No run has a full batch" in text
    assert text.count("&ndash;") + text.count("\u2013") > 5


def test_a_published_entry_shows_dashes_for_what_its_authors_do_not_say():
    one = entry("1.4", policies=())
    silent = {"run": None, "busiest_rows": None, "routed_rows": None, "batch": None, "layer": None, "rank": None}
    most = replace(one.evidence.observed_max, **silent)
    claimed = replace(policy_evidence(), run=None, content_hash=None, corpus_hash=None, dropped_tokens=None, num_units=None)
    evidence = replace(one.evidence, observed_max=most, num_units=None, policies=(claimed,))
    one = replace(one, status="published", evidence=evidence)
    text = page(TEMPLATE, facts(table(one), [compare(one, cut((0, 0, 25)))]))
    assert "None" not in text
    assert "layer \u2013, batch \u2013, rank \u2013" in text
    assert "not at hand" in text


def test_the_worst_of_all_has_a_panel_also_where_its_size_is_not_the_one_of_the_charts():
    one = entry("1.4", policies=())
    made = facts(table(one), [compare(one, cut((0, 0, 25)))])
    (run,) = made.runs
    (worst,) = run.worsts
    small = replace(worst, batch_tokens=5, num_batches=1, worst_imbalance=1.75)
    shares = [ShareRow(ep=2, batch_tokens=10, batch=0, layer=1, rank=rank, share=share) for rank, share in ((0, 1.5), (1, 0.5))]
    shares += [ShareRow(ep=2, batch_tokens=5, batch=7, layer=1, rank=rank, share=share) for rank, share in ((0, 0.25), (1, 1.75))]
    text = page(TEMPLATE, replace(made, runs=(replace(run, worsts=(worst, small), shares=tuple(shares)),)))
    assert "EP 2, 10 tokens: &#39;base&#39;, batch 0</h4>" in text
    assert "EP 2, 5 tokens: &#39;base&#39;, batch 7, the worst of all</h4>" in text
    assert ">1.75<" in text


def test_held_out_parts_are_listed_where_a_batch_exceeds_and_counted_where_none_does():
    quiet, failed = held_out(num_above=0, num_batches=1200), held_out(num_above=3, part="the other half")
    told = "In none of 1 part, of 1,200 batches, does a batch exceed"
    listed = "in 1 other part, of 1,200 batches in all, none does"
    for parts, has_table, said in (((quiet,), False, told), ((quiet, failed), True, listed)):
        one = judged(entry("1.4", policies=()), *parts)
        text = page(TEMPLATE, facts(table(one), [compare(one, cut((0, 0, 25)))]))
        assert ('aria-label="Held-out results"' in text) is has_table
        assert said in " ".join(text.split())


def test_fits_by_another_rule_than_the_entry_are_told_of():
    quiet, other = held_out(num_above=0), replace(held_out(num_above=0, part="the other half"), method="headroom-v1")
    for parts, is_told in (((quiet, quiet), False), ((quiet, other), True)):
        one = judged(entry("1.4", policies=()), *parts)
        text = " ".join(page(TEMPLATE, facts(table(one), [compare(one, cut((0, 0, 25)))])).split())
        assert ("1 of these fits had too little for the entry&#39;s own rule and went by headroom-v1." in text) is is_told


def test_runs_of_one_corpus_are_told_to_have_read_the_same_text():
    one = entry("1.4", policies=())
    made = facts(table(one), [compare(one, cut((0, 0, 25)))], names=("a", "b"))
    files = tuple(
        CorpusFile(name=f"{name}.json", format="made", rows=1, kept=1, refused=0, sha256="a" * 64) for name in "xyzw"
    )
    made = replace(made, runs=tuple(replace(run, files=files, num_units=2) for run in made.runs))
    (both,) = corpora(made.runs)
    assert both == CorpusLine(
        whose="Both read the same text:", num_trajectories=3, num_units=2, files="4 files (x.json and 3 more)"
    )
    other = replace(made.runs[1], corpus_hash="e" * 64, files=files[:2])
    first, second = corpora((made.runs[0], other))
    assert (first.whose, second.whose, second.files) == ("'a' read", "'b' read", "2 files (x.json and y.json)")
    assert "Both read the same text: 3 trajectories, <a href=\"#word-unit\">2 units</a>, of 4 files" in page(TEMPLATE, made)


def test_hashes_are_short_and_file_names_break_at_their_own_marks():
    assert short(f"sha256:{'ab12' * 16}, at 1234567890123") == "sha256:ab12ab12ab12, at 1234567890123"
    assert breakable("data/a_b<i>") == "data/<wbr>a_<wbr>b&lt;i&gt;"


def test_a_link_of_the_page_goes_to_a_part_that_it_has():
    for text in (_page(), _page(("a", "b")), _page(rows=((7, 1, 30),)), page(TEMPLATE, replace(_facts(), runs=()))):
        found = re.findall(r'href="#([^"]+)"', text)
        assert len(found) >= 5
        assert all(f'id="{name}"' in text for name in found)


def _facts():
    one = entry("1.4", policies=())
    return facts(table(one), [])


def test_the_layer_table_has_a_column_for_each_run_and_ep():
    one = entry("1.4", policies=())
    made = layer_table(facts(table(one), [compare(one, cut((0, 0, 25)))], names=("a", "b")).runs)
    assert made.columns == (("a", 2), ("b", 2))
    assert made.rows == ((0, (1.25, 1.25)), (1, (1.5, 1.5)))


def test_a_batch_above_is_listed_with_policy_layer_batch_and_factor():
    text = _page(rows=((7, 1, 30),))
    row = text[text.index("Batches above their allowance") :]
    row = row[row.index("<tbody>") : row.index("</tbody>")]
    assert row.index("base") < row.index("1.500000") < row.index(">7<")
