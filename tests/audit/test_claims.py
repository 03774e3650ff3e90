"""An allowance holds exactly as long as no batch's imbalance is above it."""

from decimal import Decimal
from fractions import Fraction

import pytest

from routing.audit.claims import Proposal, compare, evidence_fault, failure, nothing_said, unmeasured
from tests.audit.made import RUN, cut, entry, policy_evidence


def test_a_batch_at_its_allowance_is_not_above_it():
    # 24 of 40 rows on one of two ranks: 24 x 2 / 40 = 1.2 exactly; one row more is above.
    assert compare(entry("1.2"), cut((0, 0, 24))).outcome == "holds"
    assert compare(entry("1.2"), cut((0, 0, 25))).outcome == "exceeded"


def test_every_batch_above_is_named_once_by_its_worst_layer_the_furthest_first():
    # Allowance 1.3 is 26 rows. Batch 0: 27 and 30 are above, 30 is worse. Batch 1: 26 is not above. Batch 2: 32.
    found = compare(entry("1.3"), cut((0, 0, 27), (0, 1, 30), (1, 0, 26), (1, 1, 20), (2, 0, 32), (2, 1, 20)))
    assert [(one.worst.batch, one.worst.layer, one.num_layers) for one in found.above] == [(2, 0, 1), (0, 1, 2)]
    assert found.worst == found.above[0].worst
    assert found.worst.imbalance(2) == Fraction(64, 40)


def test_of_equal_batches_and_layers_the_smallest_is_named():
    found = compare(entry("1.2"), cut((1, 0, 30), (1, 1, 30), (2, 0, 30)))
    assert (found.worst.batch, found.worst.layer) == (1, 0)


def test_an_entry_of_one_layer_is_held_against_that_layer_alone():
    rows = ((0, 0, 32), (0, 1, 24))
    assert compare(entry("1.3", layer=1), cut(*rows)).outcome == "holds"
    assert compare(entry("1.3", layer=0), cut(*rows)).outcome == "exceeded"
    assert compare(entry("1.3", layer=0), cut(*rows)).where == "ep=2 batch_tokens=10 layer=0"


def test_without_a_full_batch_only_the_proven_ceiling_holds():
    assert compare(entry("2.0", ceiling="2.0"), cut()).outcome == "proven"
    assert compare(entry("1.4", ceiling="2.0"), cut()).outcome == "unmeasured"


def test_what_no_run_can_say_is_named_with_the_tokens_that_there_are():
    found = [compare(entry("1.4"), cut(dropped_tokens=7))]
    assert unmeasured(found) == ["one: no full batch at ep=2 batch_tokens=10, the run holds 7 tokens; nothing is said of it"]
    assert nothing_said("a.yaml", found) == (
        "a.yaml: no run has a full batch of any of its sizes (10 tokens), so nothing was checked; measure more tokens"
    )


def test_one_comparison_is_enough_to_have_said_something():
    assert nothing_said("a.yaml", [compare(entry("1.4"), cut()), compare(entry("1.4"), cut((0, 0, 20)))]) is None
    assert nothing_said("a.yaml", [compare(entry("2.0"), cut())]) is None


def test_a_failure_names_policy_run_layer_batch_factor_and_the_value_to_plan_with():
    # 30 x 2 / 40 = 1.5 against 1.4, 32 x 2 / 40 = 1.6 against 1.5: 1.071 times against 1.067, the first is furthest.
    found = [compare(entry("1.4"), cut((4, 1, 30))), compare(entry("1.5", batch_tokens=20), cut((0, 0, 32), batch_tokens=20))]
    proposal = Proposal(ep=2, batch_tokens=10, layer="all", allowance=Decimal("1.4"), proposed=Decimal("1.7"), binds="core")
    assert failure("a.yaml", found, [proposal]) == (
        "a.yaml: 2 allowances are exceeded, the furthest at ep=2 batch_tokens=10: 1.500000 against 1.4, policy 'base' (run one), "
        "layer 1, batch 4; proposed 1.7; nothing was changed, fit again with these runs"
    )
    assert failure("a.yaml", [compare(entry("1.5"), cut((4, 1, 30)))], []) is None


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        (policy_evidence(num_batches=1, observed_max="1.25"), None),
        (policy_evidence(num_batches=2, observed_max="1.25"), "the table says full batches 2, its run 1"),
        (policy_evidence(num_batches=1, observed_max="1.3"), "the table says observed max 1.3, its run 1.25"),
    ],
)
def test_evidence_is_counted_again_where_its_run_is_at_hand(claimed, said):
    # 25 x 2 / 40 = 1.25 in the run's one batch.
    fault = evidence_fault(compare(entry("1.4", policies=(claimed,)), cut((0, 0, 25))))
    assert fault == (said and f"base at ep=2 batch_tokens=10: {said}")


def test_another_run_is_no_fault_of_the_evidence():
    from dataclasses import replace

    other = replace(RUN, corpus_hash="e" * 64)
    assert evidence_fault(compare(entry("1.4"), cut((0, 0, 40), identity=other))) is None
