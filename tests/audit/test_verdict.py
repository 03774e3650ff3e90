"""The verdict says in plain words what holds, on what evidence, and what is not covered."""

from dataclasses import replace

import pytest

from routing.audit.claims import compare
from routing.audit.reach import limits, reach, stated
from routing.audit.verdict import furthest, judge
from routing.core.allowance import Override
from tests.audit.made import cut, entry, facts, held_out, judged, policy_evidence, table


def _judged(*pairs, override=None, **more):
    """Each pair an entry and the run that it is held against."""
    the_table = table(*(one for one, _ in pairs), override=override)
    return judge(facts(the_table, [compare(one, found) for one, found in pairs], **more))


OTHER = policy_evidence(num_batches=3)


def test_all_hold():
    verdict = _judged((entry("1.4", policies=()), cut((0, 0, 25), (1, 1, 26))))
    assert (verdict.kind, verdict.headline) == ("holds", "Every allowance holds in every measured batch.")
    # 26 x 2 / 40 = 1.3
    assert verdict.sentences == (
        "1 allowance at EP 2 was compared with every full batch of 1 measured run: 2 of 10 tokens.",
        "Closest to its allowance, and the worst seen: EP 2 at 10 tokens, 1.30 seen against 1.4 allowed ('base', "
        "layer 1, batch 1, rank 0; layers, batches and ranks count from 0).",
    )
    assert verdict.action == (
        "Use these numbers only for the policies and data named here; for yours, measure and refit. "
        "Until then only min(EP, experts / top-k) is safe: 2.0 at EP 2."
    )


def test_one_batch_above_fails_the_table():
    pairs = (
        (entry("1.4", policies=()), cut((0, 0, 30))),
        (entry("1.6", batch_tokens=5, policies=()), cut((0, 0, 30), batch_tokens=5)),
    )
    verdict = _judged(*pairs)
    assert (verdict.kind, verdict.headline) == ("fails", "1 of 2 allowances does not hold.")
    said = "Furthest above its allowance, and the worst seen: EP 2 at 10 tokens, 1.50 seen against 1.4 allowed"
    assert verdict.sentences[1].startswith(said)
    assert verdict.action.startswith("Do not plan with an allowance that was exceeded: fit again")


def test_what_could_not_be_compared_is_not_said_to_hold():
    held, silent = (
        (entry("1.4", policies=()), cut((0, 0, 20))),
        (entry("1.3", batch_tokens=99, policies=()), cut(batch_tokens=99)),
    )
    verdict = _judged(held, silent)
    assert verdict.headline == "1 of 2 allowances could be compared, and hold; 1 could not."
    assert any("no full batch at ep=2 batch_tokens=99" in line for line in verdict.not_covered)
    assert _judged(silent).kind == "open"


def test_evidence_that_its_own_run_does_not_show_fails_the_table():
    verdict = _judged((entry("1.4", policies=(policy_evidence(num_batches=1, observed_max="1.1"),)), cut((0, 0, 25))))
    assert (verdict.kind, verdict.headline) == ("fails", "The table's evidence is not what its own runs show.")


def test_that_a_table_holds_for_its_own_runs_is_said_to_be_no_test():
    own = policy_evidence(num_batches=1, observed_max="1.25")
    verdict = _judged((entry("1.4", policies=(own,)), cut((0, 0, 25))))
    assert "These are the runs that the table was fitted to: that it fits them is no test on new data." in verdict.sentences
    assert (verdict.kind, verdict.headline) == ("open", "Fits the runs it was made from; no held-out half was tried.")


def test_a_table_that_failed_on_held_out_halves_is_open_and_says_where_first():
    own = policy_evidence(num_batches=1, observed_max="1.25")
    good = judged(entry("1.4", policies=(own,)), held_out(num_above=0))
    bad = judged(
        entry("1.6", batch_tokens=5, policies=(own,)),
        held_out(num_above=5, num_batches=909),
        held_out(num_above=0, num_batches=908, allowance="1.5"),
    )
    verdict = _judged((good, cut((0, 0, 25))), (bad, cut((0, 0, 25), batch_tokens=5)))
    assert (verdict.kind, verdict.headline) == ("open", "Fits the runs it was made from; not validated at EP 2 with 5 tokens.")
    assert (
        "Not validated at EP 2 with 5 tokens: 5 of 909 batches of 'base' exceed 1.2 at EP 2 at 5 tokens (the table has 1.6); "
        "1.2 is what the run's other half alone would allow."
    ) in verdict.sentences
    assert verdict.action.endswith(
        "At EP 2 with 5 tokens do not rely on 1.6, even for these policies: plan for 2.0, or measure more."
    )
    held = _judged((good, cut((0, 0, 25))))
    assert held.kind == "holds"
    assert "do not rely" not in held.action


def test_the_closest_to_its_allowance_is_not_the_worst_seen_where_another_is_above_it():
    # 1.25 / 1.3 = 0.96, 1.5 / 1.9 = 0.79
    pairs = (
        (entry("1.3", policies=()), cut((0, 0, 25))),
        (entry("1.9", batch_tokens=5, policies=()), cut((0, 0, 30), batch_tokens=5)),
    )
    assert _judged(*pairs).sentences[1].startswith("Closest to its allowance: EP 2 at 10 tokens, 1.25 seen against 1.3 allowed")


def test_few_batches_are_said_with_the_share_that_their_largest_covers():
    one = entry("1.4", policies=(policy_evidence(num_batches=15, observed_max="1.25"), policy_evidence(num_batches=40)))
    sentence = (
        "Few batches of 10 tokens: 15 a policy, of which the largest covers only 81.8% of batches at 95% confidence "
        "(59 batches cover 95%)."
    )
    assert sentence in _judged((one, cut((0, 0, 25)))).sentences  # 0.05^(1/15) = exp(-2.9957 / 15) = 0.81894
    other = entry("1.4", policies=(policy_evidence(num_batches=59),))
    assert not any(line.startswith("Few batches") for line in _judged((other, cut((0, 0, 25)))).sentences)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"markings": ("simulated", "toy")},
            "Not production numbers: by the names of policy or corpus the run is marked simulated and toy.",
        ),
        (
            {"num_without_router": 2},
            "'base': 2 trajectories left out (--skip-bad), to which a router gave NaN, Inf or equal logits.",
        ),
        ({"override": Override(reason="a trial", name="Ada")}, "Entries were edited by hand. Ada answers for that: a trial"),
    ],
)
def test_what_weakens_a_number_stands_beside_the_verdict(more, sentence):
    assert sentence in _judged((entry("1.4", policies=()), cut((0, 0, 20))), **more).sentences


def test_what_is_not_covered_names_other_sizes_models_and_placements():
    lines = _judged((entry("1.4", policies=()), cut((0, 0, 20)))).not_covered
    assert "EP sizes other than 2: the table has no entry, and none is borrowed" in lines
    assert "Models other than made, and expert placements other than contiguous" in lines
    assert "one: one full batch of 10 tokens, nothing says how the next would differ" in lines


def test_limits_give_the_chance_over_many_batches_and_what_alone_is_proven():
    # 17 batches seen: the chance that one of the next 1,000 passes the largest is 1000 / 1017 = 98.3%.
    one = entry("1.4")
    lines = limits(facts(table(one), [compare(one, cut((0, 0, 20)))]))
    assert stated(facts(table(one), [])) == ("EP 2 at 10 tokens: base: 17 batches of 10 tokens, 5 units.",)
    (row,) = reach(facts(table(one), []))
    assert (row.batch_tokens, row.policy, row.num_batches, row.num_units) == (10, "base", 17, 5)
    assert (row.next_exceeds, row.next_thousand_exceed) == (1 / 18, 1000 / 1017)
    assert row.covered_share == pytest.approx(0.8384, abs=1e-4)  # 0.05^(1/17) = exp(-2.9957 / 17)
    assert any(line.startswith("Only min(EP, E/k) is proven") and "2.0 at EP 2" in line for line in lines)
    assert any("59 batches" in line and "299" in line for line in lines)


def test_an_entry_without_a_fit_says_why_it_has_only_its_ceiling():
    mixed = "Only min(EP, E/k) = 2.0 is proven, and no run has two full batches to fit from."
    one = entry("1.4")
    one = replace(one, evidence=replace(one.evidence, coverage=(mixed, "Only min(EP, E/k) = 2.0 is proven.")))
    assert stated(facts(table(one), [])) == (f"EP 2 at 10 tokens: {mixed}",)


def test_the_furthest_above_is_by_factor_over_its_allowance():
    # 1.5 / 1.4 = 1.071, 1.55 / 1.5 = 1.033
    low, high = compare(entry("1.5"), cut((0, 0, 31))), compare(entry("1.4"), cut((0, 0, 30)))
    assert furthest([low, high], 5) == ((high, 0), (low, 0))
    assert furthest([low, high], 1) == ((high, 0),)


def test_a_policy_that_exceeds_what_was_fitted_without_it_is_a_warning_of_the_verdict():
    one = judged(entry("1.4", policies=()), held_out("policy", num_above=13, part="the policy"))
    verdict = _judged((one, cut((0, 0, 25))))
    assert verdict.kind == "holds"
    assert (
        "Do not use it for a policy that was not measured: fitted without 'base', EP 2 at 10 tokens would be 1.2, "
        "and 13 of 20 of its batches exceed that."
    ) in verdict.sentences


def test_a_marking_is_counted_over_the_runs_that_bear_it():
    one = entry("1.4", policies=())
    made = facts(table(one), [compare(one, cut((0, 0, 20)))], names=("a", "b"), markings=("toy",))
    first, second = made.runs
    marked = replace(made, runs=(first, replace(second, markings=("toy", "untrained"))))
    assert (
        "Not production numbers: by the names of policy or corpus both runs are marked toy and one is marked untrained."
    ) in judge(marked).sentences


def test_device_and_uncommitted_changes_of_a_run_are_not_covered():
    one = entry("1.4", policies=())
    made = facts(table(one), [compare(one, cut((0, 0, 20)))])
    made = replace(made, runs=tuple(replace(run, device="cpu (x86_64), float32", is_dirty=True) for run in made.runs))
    lines = judge(made).not_covered
    assert any(line.startswith("Other devices and number types than cpu (x86_64), float32, of 'base'") for line in lines)
    assert any("'base'" in line and "uncommitted changes" in line for line in lines)
