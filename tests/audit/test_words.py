"""Numbers and lists read the same everywhere on the page, and what is missing is a dash."""

from decimal import Decimal

import pytest

from routing.audit.facts import markings
from routing.audit.words import (
    audit_title,
    beside,
    count,
    dash,
    distinct_names,
    exact,
    gigabytes,
    listed,
    number_of,
    places,
    ratio,
    size,
)
from tests.audit.made import entry, table


@pytest.mark.parametrize("write", [ratio, exact, count, size, dash])
def test_what_is_missing_is_a_dash(write):
    assert write(None) == "\u2013"


def test_numbers_are_formatted():
    assert (ratio(1.5), exact(Decimal("2")), count(1_234_567), size(200_000)) == ("1.5000", "2.0", "1,234,567", "200k")
    assert gigabytes(1_500_000_000) == "1.5 GB"
    assert (number_of(1, "batch", "batches"), number_of(2_400, "batch", "batches")) == ("1 batch", "2,400 batches")
    assert (listed([2, 4, 8]), listed([2]), listed([])) == ("2, 4 and 8", "2", "")


def test_a_short_number_is_still_on_its_side_of_the_allowance():
    assert beside(Decimal("2.548828"), Decimal("2.6")) == "2.55"
    assert beside(1.3004, Decimal("1.3")) == "1.3004"  # 1.30 would not be above
    assert beside(1.2999, Decimal("1.3")) == "1.30"


def test_places_are_told_by_batch_size():
    found = [entry(ep=4, batch_tokens=2_000), entry(ep=8, batch_tokens=2_000), entry(ep=8, batch_tokens=20_000)]
    assert places(found) == "EP 4 and EP 8 with 2k tokens and EP 8 with 20k tokens"
    assert places(found[1:]) == "EP 8 with 2k and 20k tokens"


def test_the_title_names_the_runs_and_the_model_where_there_are_none_or_many():
    model = table(entry()).model
    assert audit_title(model, ["a", "b, c"]) == "'a' and 'b, c', 8 experts, top-2, 2 MoE layers"
    for names in ([], ["a", "b", "c", "d"]):
        assert audit_title(model, names) == "made, 8 experts, top-2, 2 MoE layers"


def test_runs_of_one_label_are_told_apart():
    assert distinct_names([("a", "x"), ("b", "y")]) == ("a", "b")
    assert distinct_names([("a", "x"), ("a", "y")]) == ("a (x)", "a (y)")
    assert distinct_names([("a", "x"), ("a", "x")]) == ("a (x), run 1 of the command", "a (x), run 2 of the command")


def test_only_whole_words_mark_a_run():
    assert markings("Toy policy, simulated shop") == ("simulated", "toy")
    assert markings("toyota-demonstration.jsonl", "latest") == ()
