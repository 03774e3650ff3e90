"""The line of an EP size says the number, what it rests on and what speaks against it."""

from dataclasses import replace

from routing.audit.advice import advices
from routing.audit.claims import compare
from tests.audit.made import cut, entry, facts, table


def _advice(*pairs):
    return advices(facts(table(*(one for one, _ in pairs)), [compare(one, found) for one, found in pairs]))


def test_the_number_of_the_largest_size_comes_first_and_smaller_sizes_after_it():
    (one,) = _advice(
        (entry("1.6", batch_tokens=5), cut((0, 0, 25), batch_tokens=5)), (entry("1.4", batch_tokens=10), cut((0, 0, 25)))
    )
    assert (one.ep, one.use) == (2, "1.4 from 10 tokens a batch, 1.6 from 5 tokens a batch")
    assert one.rests_on == "10: worst 1.25 of 17 batches of 1 policy; 5: worst 1.25 of 17 batches of 1 policy"


def test_sizes_with_one_number_are_one():
    (one,) = _advice(
        (entry("1.4", batch_tokens=5), cut((0, 0, 25), batch_tokens=5)), (entry("1.4", batch_tokens=10), cut((0, 0, 25)))
    )
    assert one.use == "1.4 from 5 tokens a batch"


def test_a_passed_allowance_says_so_first():
    (one,) = _advice((entry("1.4", warnings=("one_policy: another may route otherwise",)), cut((0, 0, 30))))
    assert one.weak_sides == ("passed at 10 by 1 batch of these runs", "one policy alone at 10")


def test_little_slack_is_a_weak_side():
    (one,) = _advice((entry("1.3"), cut((0, 0, 25))))  # 1.3 - 1.25
    assert one.weak_sides == ("0.05 of slack left at 10",)


def test_published_figures_are_named_as_such():
    (one,) = _advice((replace(entry("1.4"), status="published"), cut((0, 0, 25))))
    assert one.rests_on == "10: published figures, worst 1.25"
    assert one.weak_sides[0] == "others' figures, not measured here"


def test_entries_of_single_layers_give_no_line():
    assert _advice((entry("1.4", layer=1), cut((0, 1, 25)))) == ()
