"""An EP size's lines say what each number rests on, how it stands, and what speaks against it."""

from dataclasses import replace

import pytest

from routing.audit.advice import advices, rests_on, stands
from routing.audit.claims import compare
from routing.audit.entries import EntryFacts
from tests.audit.made import cut, entry, facts, held_out, judged, policy_evidence, table


def _advice(*pairs):
    return advices(facts(table(*(one for one, _ in pairs)), [compare(one, found) for one, found in pairs]))


def _facts(one, found):
    return EntryFacts(entry=one, comparisons=(compare(one, found),), evidence=())


def test_the_largest_size_comes_first():
    (one,) = _advice(
        (entry("1.6", batch_tokens=5), cut((0, 0, 25), batch_tokens=5)), (entry("1.4", batch_tokens=10), cut((0, 0, 25)))
    )
    assert (one.ep, [found.entry.batch_tokens for found in one.entries]) == (2, [10, 5])


def test_a_number_names_the_worst_that_it_was_made_from_and_its_batches():
    assert rests_on(_facts(entry("1.4"), cut((0, 0, 25)))) == "worst seen: 1.25, in 17 batches"
    assert rests_on(_facts(replace(entry("1.4"), status="published"), cut((0, 0, 25)))) == "published, worst seen: 1.25"
    assert rests_on(_facts(replace(entry("1.4"), status="implied"), cut((0, 0, 25)))) == "implied, no batch"


OWN = policy_evidence(num_batches=59, observed_max="1.25")  # 0.05^(1/59) = 0.9505
FEW = policy_evidence(num_batches=58, observed_max="1.25")  # 0.05^(1/58) = 0.9497


@pytest.mark.parametrize(
    ("one", "rows", "said", "standing"),
    [
        (entry("1.4", policies=()), 25, "holds here", "holds"),
        (entry("1.4", policies=()), 30, "does not hold", "exceeded"),
        (entry("1.4", policies=(OWN,)), 25, "fits its own data; no held-out test", "untested"),
        (judged(entry("1.4", policies=(OWN,)), held_out(num_above=0)), 25, "fits its own data; held-out halves hold", "holds"),
        (
            judged(entry("1.4", policies=(OWN,)), replace(held_out(num_above=0), method="headroom-v1")),
            25,
            "fits its own data; held-out halves hold (fitted by headroom-v1)",
            "limited",
        ),
        (judged(entry("1.4", policies=(OWN,)), held_out(num_above=1)), 25, "fits its own data; failed held-out", "unvalidated"),
        (judged(entry("1.4", policies=()), held_out(num_above=1)), 25, "holds here; failed held-out", "unvalidated"),
        (
            judged(entry("1.4", policies=(OWN,)), held_out("policy", num_above=9)),
            25,
            "fits its own data; no held-out test; a held-out policy failed",
            "untested",
        ),
        (
            judged(
                entry("1.4", policies=(OWN,)),
                held_out(num_above=0),
                held_out("stratum", num_above=9),
                held_out("policy", num_above=9),
            ),
            25,
            "fits its own data; held-out halves hold; a held-out policy and source failed",
            "limited",
        ),
        (
            judged(entry("1.4", policies=(OWN, FEW)), held_out(num_above=0)),
            25,
            "fits its own data; held-out halves hold; only 58 batches a policy (59 cover 95%)",
            "limited",
        ),
        (replace(entry("1.4", policies=(FEW,)), status="published"), 25, "fits its own data; no held-out test", "untested"),
    ],
)
def test_an_allowance_that_fits_its_own_data_does_not_stand_where_held_out_batches_exceed_it(one, rows, said, standing):
    # 25 x 2 / 40 = 1.25 and 30 x 2 / 40 = 1.5 against 1.4
    found = _facts(one, cut((0, 0, rows)))
    assert (stands(found), found.standing) == (said, standing)


def test_an_exceeded_allowance_says_so_first():
    (one,) = _advice((entry("1.4", warnings=("one_policy: another may route otherwise",)), cut((0, 0, 30))))
    assert one.weak_sides == ("10 tokens: exceeded by 1 batch of these runs", "10 tokens: one policy alone")


def test_every_held_out_part_that_failed_is_named_with_what_its_count_is_of():
    parts = (
        held_out(num_above=5, num_batches=909, allowance="1.6"),
        held_out("stratum", num_above=1, num_batches=199, part="stratum shop.json"),
        held_out("policy", num_above=2, num_batches=1817, part="base"),
        held_out("stratum", num_above=0, part="stratum other.json"),
    )
    (one,) = _advice((judged(entry("1.4"), *parts), cut((0, 0, 25))))
    assert one.weak_sides == (
        "10 tokens: fitted on half of the units, 5 of 909 batches of 'base' in the other half exceed 1.6",
        "10 tokens: fitted without the source shop.json, 1 of 199 of its batches of 'base' exceeds 1.2",
        "10 tokens: fitted without 'base', 2 of 1,817 of its batches exceed 1.2",
    )


def test_little_slack_is_a_weak_side():
    (one,) = _advice((entry("1.3"), cut((0, 0, 25))))  # 1.3 - 1.25
    assert one.weak_sides == ("10 tokens: 0.05 of slack left",)


def test_a_number_that_is_the_largest_seen_rounded_up_says_that_it_has_no_other_margin():
    one = entry("1.3")
    (found,) = _advice((replace(one, evidence=replace(one.evidence, binds="observed")), cut((0, 0, 25))))  # 1.3 - 1.25
    assert found.weak_sides == ("10 tokens: this is the largest seen, rounded up: no margin beyond rounding (0.05)",)


def test_published_figures_are_named_as_such():
    (one,) = _advice((replace(entry("1.4"), status="published"), cut((0, 0, 25))))
    assert one.weak_sides[0] == "10 tokens: others' figures, not measured here"


def test_entries_of_single_layers_give_no_line():
    assert _advice((entry("1.4", layer=1), cut((0, 1, 25)))) == ()
