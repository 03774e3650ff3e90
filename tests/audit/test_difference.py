"""What moved between two tables, what lost its support, and a text that nobody's label can break out of."""

import re
from dataclasses import replace
from decimal import Decimal

import pytest

from routing.audit.claims import compare
from routing.audit.difference import difference, difference_rows, same_entries
from routing.audit.pull_request import MARK, RefreshFacts, RunLine, code, markdown
from routing.core.allowance import Floor
from routing.core.judgement import HeldOut
from tests.audit.made import cut, entry, policy_evidence, table

NASTY = "a|b <img src=x> `c` *d* [e](https://f.example) @g #1 &amp; \\ www.h.example"


def _on(one, **evidence):
    return replace(one, evidence=replace(one.evidence, **evidence))


def _moved(committed, fitted):
    (one,) = difference(table(committed), table(fitted))
    return one


def _facts(committed, fitted, **changes):
    comparisons = None if committed is None else ()
    values = {
        "fitted": fitted,
        "moved": difference(committed, fitted),
        "comparisons": comparisons,
        "runs": (
            RunLine(run="one", label="base", tokens_packed=1234, num_trajectories=5, content_hash="c" * 64, corpus_hash="d" * 64),
        ),
        "table": "allowances.yaml",
        "command": "routing refresh plan.yaml",
        "is_written": False,
    }
    return RefreshFacts(**{**values, **changes})


def test_every_place_of_either_table_is_told_with_its_change():
    committed = table(entry("1.4"), entry("1.5", batch_tokens=5), entry("1.3", layer=1), entry("1.6", ep=4, ceiling="4.0"))
    fitted = table(entry("1.4"), entry("1.7", batch_tokens=5), entry("1.2", layer=1), entry("1.8", ep=8, ceiling="4.0"))
    found = [
        (one.entry.ep, one.entry.batch_tokens, one.entry.layer, one.change, one.delta) for one in difference(committed, fitted)
    ]
    assert found == [
        (2, 10, "all", "same", Decimal("0.0")),
        (4, 10, "all", "gone", None),
        (8, 10, "all", "new", None),
        (2, 5, "all", "raised", Decimal("0.2")),
        (2, 10, 1, "lowered", Decimal("-0.1")),
    ]


def test_without_a_committed_table_every_entry_is_new_and_lost_nothing():
    assert [(one.change, one.lost_support) for one in difference(None, table(entry()))] == [("new", ())]


@pytest.mark.parametrize(
    ("committed", "fitted", "lost"),
    [
        ("fitted", "headroom", ("fitted -> headroom",)),
        ("fitted", "published", ("fitted -> published",)),
        ("published", "headroom", ("published -> headroom",)),
        ("headroom", "implied", ("headroom -> implied",)),
        ("headroom", "proven", ("headroom -> proven",)),
        ("headroom", "fitted", ()),
        ("published", "fitted", ()),
        ("headroom", "headroom", ()),
    ],
)
def test_a_weaker_status_is_lost_support(committed, fitted, lost):
    assert _moved(replace(entry(), status=committed), replace(entry(), status=fitted)).lost_support == lost


def test_fewer_batches_units_policies_and_floors_are_lost_support_each():
    other = replace(policy_evidence(), label="rollouts", weights_sha256="v" * 64)
    floor = Floor(value=Decimal("1.95"), source="a small sample", kind="measured", batch_tokens=None, layer="all")
    committed = _on(entry(policies=(policy_evidence(), other)), num_batches=34, num_units=10, floors=(floor,))
    lost = _moved(committed, entry()).lost_support
    assert lost == ("34 -> 17 batches", "10 -> 5 units", "without policy rollouts", "without floor 1.95")
    assert _moved(entry(), committed).lost_support == ()


def test_the_same_weights_under_another_label_are_the_same_policy():
    renamed = replace(policy_evidence(), label="renamed")
    assert _moved(entry(), entry(policies=(renamed,))).lost_support == ()


def test_an_entry_that_is_gone_has_lost_all_and_nulls_for_the_fit():
    gone = difference_rows(difference(table(entry(), entry(ep=4, ceiling="4.0")), table(entry())))[1]
    assert (gone["change"], gone["fitted"], gone["delta"], gone["binds"], gone["lost_support"]) == (
        "gone",
        None,
        None,
        None,
        ["no entry"],
    )


def test_tables_of_the_same_entries_differ_in_nothing_but_time():
    one = table(entry())
    assert same_entries(one, replace(one, generated=replace(one.generated, generated_at="2030-01-01T00:00:00Z")))
    assert not same_entries(one, table(entry("1.5")))
    assert not same_entries(None, one)


def test_the_text_says_what_moved_and_leaves_out_what_did_not():
    committed = table(entry("1.4"), entry("1.4", batch_tokens=5))
    halves = tuple(
        HeldOut(
            kind=kind,
            run="one",
            label="base",
            part="half",
            method="m",
            allowance=Decimal("1.6"),
            num_batches=20,
            num_above=above,
            worst=None,
            above=(),
        )
        for kind, above in (("units", 1), ("units", 2), ("policy", 9))
    )
    text = markdown(_facts(committed, table(entry("1.4"), _on(entry("1.6", batch_tokens=5), held_out=halves))))
    assert text.startswith(MARK)
    assert "1 raised and 1 same" in text
    assert "| 2 | 5 | all | 1.4 headroom | **1.6** headroom | +0.2 | observed worst with headroom | 3 of 40 |  |" in text
    assert "1 entry is as committed, on no less evidence." in text
    assert "1,234" in text
    assert text.count("\n| 2 |") == 1


def test_the_text_of_a_violated_table_names_what_exceeded_it():
    committed = table(entry("1.1"))
    comparison = compare(committed.entries[0], cut((0, 0, 28), (1, 0, 20)))  # 28 x 2 / 40 = 1.4, 1.0
    text = markdown(_facts(committed, table(entry("1.6")), comparisons=(comparison,)))
    assert "is violated**: 1 allowance exceeded by 1 batch of these runs." in text
    assert "| 2 | 10 | 1.1 | 1.4000 | <code>base</code> | 0 | 0 | 0 |" in text


def test_no_name_breaks_out_of_its_cell_or_becomes_markdown():
    nasty = replace(policy_evidence(), label=NASTY, weights_sha256="v" * 64)
    committed = table(entry("1.1", policies=(policy_evidence(), nasty)))
    fitted = table(_on(entry("1.6"), binds=f"stratum {NASTY}"))
    runs = (RunLine(run="one", label=NASTY, tokens_packed=1, num_trajectories=1, content_hash="c" * 64, corpus_hash="d" * 64),)
    identity_cut = cut((0, 0, 28))
    comparison = compare(committed.entries[0], replace(identity_cut, identity=replace(identity_cut.identity, label=NASTY)))
    facts = _facts(
        committed, fitted, comparisons=(comparison,), runs=runs, table=f"{NASTY}.yaml", command=f"routing refresh {NASTY}"
    )
    text = markdown(facts)
    assert text.count(code(NASTY)) == 4
    assert not re.search(r"<(?!/?code>|!-- routing refresh -->)", text)
    assert all(piece not in text for piece in ("`", "@", "www.", "://", "[e]", "*d*", "#1 "))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    bars = {line.count("|") for line in rows}
    assert bars == {10, 9, 7}  # nine, eight and six columns


def test_what_is_not_printable_is_shown_as_unknown():
    assert code("a\n\x00\u202eb") == "<code>a&#65533;&#65533;&#65533;b</code>"
