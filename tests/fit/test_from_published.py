"""Published maxima become the published allowances, and every entry says that nobody here counted them."""

from decimal import Decimal

import pytest

from routing.core.allowance import entry_faults
from routing.core.errors import InputError
from routing.fit.published import fit_published
from routing.fit.table import table_model
from tests.fit.figures import ALL, GENERATED, SHAPE, measured, row


def _fit(*rows, batch_tokens=200_000):
    model = table_model("toy", SHAPE, ("same shape",))
    table, (caution,) = fit_published(rows, model=model, reference_batch_tokens=batch_tokens, generated=GENERATED)
    assert list(entry_faults(table.entries, SHAPE)) == []
    return {entry.ep: entry for entry in table.entries}, caution.message


def _allowances(*rows, **choices):
    return {ep: str(entry.allowance) for ep, entry in _fit(*rows, **choices)[0].items()}


def _codes(entry):
    return [warning.partition(":")[0] for warning in entry.evidence.warnings]


def test_the_published_maxima_give_the_published_allowances():
    entries, _ = _fit(*ALL)
    # 1 + 1.35 x 0.24 = 1.324, floor 1.35; 1 + 1.35 x 0.41 = 1.5535; 1 + 1.35 x 0.62 = 1.837, floor 1.95.
    assert {ep: str(entry.allowance) for ep, entry in entries.items()} == {2: "1.4", 4: "1.6", 8: "2.0"}
    evidence = {ep: entry.evidence for ep, entry in entries.items()}
    assert {ep: one.raw_bound for ep, one in evidence.items()} == {2: Decimal("1.35"), 4: Decimal("1.5535"), 8: Decimal("1.95")}
    assert {ep: one.binds for ep, one in evidence.items()} == {2: "floor", 4: "core", 8: "floor"}
    assert {ep: one.slack for ep, one in evidence.items()} == {2: Decimal("0.16"), 4: Decimal("0.19"), 8: Decimal("0.38")}


def test_every_entry_is_marked_published_wherever_a_reader_looks():
    for entry in _fit(*ALL)[0].values():
        assert (entry.status, entry.evidence.method, entry.batch_tokens) == ("published", "headroom-v1", 200_000)
        assert entry.evidence.parameters["evidence"] == "published"
        assert _codes(entry)[:2] == ["published", "low_evidence"]
        assert entry.evidence.observed_max.label.endswith("(published)")
        assert all(policy.label.endswith("(published)") for policy in entry.evidence.policies)


def test_what_the_source_does_not_say_is_null():
    evidence = _fit(*ALL)[0][8].evidence
    assert (evidence.observed_max.imbalance, evidence.observed_max.label) == (Decimal("1.62"), "pretrained (published)")
    assert (evidence.observed_max.layer, evidence.observed_max.busiest_rows, evidence.observed_max.top_experts) == (
        None,
        None,
        (),
    )
    assert (evidence.num_units, evidence.median, evidence.p95, evidence.worst_layers) == (None, None, None, ())
    assert {(one.run, one.content_hash, one.revision, one.num_units, one.dropped_tokens) for one in evidence.policies} == {
        (None, None, None, None, None)
    }


def test_tokens_are_whole_batches_and_the_next_one_is_told():
    evidence = _fit(*ALL)[0][4].evidence
    # 3.5M / 200k = 17.5 of each of two policies.
    assert [(one.name, one.num_batches, one.observed_max) for one in evidence.policies] == [
        ("pretrained", 17, Decimal("1.40")),
        ("trained", 17, Decimal("1.41")),
    ]
    assert (evidence.num_batches, evidence.num_tokens) == (34, 7_000_000)
    told = "next_batch: 3.5M tokens are 17 batches of 200k: the next batch passes the largest of 17 once in 18"
    assert told in evidence.warnings
    # 0.05^(1/17) = e^-0.17622 = 0.8384.
    assert evidence.coverage[0] == (
        "pretrained (published): 17 batches of 200000 tokens; chance that the next batch passes its observed max = 1/18; "
        "share of batches covered at 95% confidence: 83.8%."
    )
    assert evidence.coverage[-1] == "Only min(EP, E/k) = 4 is proven."


def test_the_policy_with_fewest_batches_tells_the_next_one():
    entries, _ = _fit(measured("long", 2, "1.2", tokens=2_000_000), measured("short", 2, "1.1", tokens=800_000))
    assert "next_batch: 800k tokens are 4 batches of 200k: the next batch passes the largest of 4 once in 5" in (
        entries[2].evidence.warnings
    )


def test_the_table_says_what_it_rests_on():
    entries, rests_on = _fit(*ALL)
    for ep, code, sentence in (
        (2, "one_inferred_value", "EP 2 rests on one inferred value"),
        (4, "no_small_batches", "EP 4 has no small-batch evidence"),
        (8, "one_small_sample", "EP 8 rests on one small sample"),
    ):
        assert entries[ep].evidence.warnings[-1].startswith(f"{code}: {sentence}")
        assert _codes(entries[ep])[-1] == code
        assert sentence in rests_on
    # 2.0 - 1.95.
    assert "(1.95, a small sample; the allowance leaves 0.05)" in entries[8].evidence.warnings[-1]


def test_a_floor_below_the_core_binds_nothing_and_is_listed():
    entries, rests_on = _fit(measured("a", 2, "1.24"), row("b", "small_sample", 2, "1.30"))
    assert (str(entries[2].allowance), entries[2].evidence.binds, rests_on) == ("1.4", "core", "")
    assert [floor.value for floor in entries[2].evidence.floors] == [Decimal("1.30")]


def test_floors_say_whether_they_were_measured_or_inferred():
    entries, _ = _fit(*ALL)
    floors = {ep: [(floor.value, floor.kind, floor.source) for floor in entry.evidence.floors] for ep, entry in entries.items()}
    assert floors == {
        2: [(Decimal("1.35"), "inferred", "one production run (published: production)")],
        4: [],
        8: [(Decimal("1.95"), "measured", "a small sample (published: rollouts)")],
    }


def test_context_is_told_and_bounds_nothing():
    entries, _ = _fit(measured("a", 2, "1.10"), row("any", "context", 2, "1.90", source="a layer at the peak"))
    assert str(entries[2].allowance) == "1.2"  # 1 + 1.35 x 0.10 = 1.135
    assert entries[2].evidence.floors == ()
    assert "Told beside it and no bound: any (published), 1.90: a layer at the peak." in entries[2].evidence.coverage


def test_what_was_measured_at_another_size_is_a_floor_without_headroom():
    other = measured("a", 2, "1.50", batch_tokens=2_000, tokens=10_000)
    assert _allowances(measured("a", 2, "1.10"), other) == {2: "1.5"}
    assert _allowances(measured("a", 2, "1.10"), other, batch_tokens=2_000) == {2: "1.7"}  # 1 + 1.35 x 0.5 = 1.675


def test_the_order_of_the_rows_decides_nothing():
    assert _allowances(*reversed(ALL)) == _allowances(*ALL)


def test_a_floor_alone_fits_nothing():
    with pytest.raises(InputError, match="ep=16 has no measured row of 200000 tokens to fit from"):
        _fit(*ALL, row("rollouts", "small_sample", 16, "2.5"))
    with pytest.raises(InputError, match="no row"):
        _fit()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("a", "measured", 2, "2.01"), "worst_imbalance=2.01 is outside 1 to ep=2"),
        (("a", "context", 2, "0.99"), "worst_imbalance=0.99 is outside 1 to ep=2"),
        (("a", "context", 1, "1"), "ep=1 has no imbalance"),
        (("a", "guessed", 2, "1.2"), "kind 'guessed' is none of measured, small_sample, inferred, context"),
        (("a", "measured", 2, "1.2"), "a measured worst states batch_tokens, and tokens of at least one batch"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        row(*fields)
    with pytest.raises(InputError, match="at least one batch"):
        measured("a", 2, "1.2", tokens=199_999)
