"""The arithmetic of docs/bytes.md is right and has a line for every term; the page's own run holds that the program prints it."""

import re
from fractions import Fraction

import pytest

from routing.stages.estimator import Estimator
from routing.store.waves import parse_wave
from tests.calculator import SUM, calculated
from tests.conftest import REPOSITORY

TEXT = (REPOSITORY / "docs" / "bytes.md").read_text(encoding="utf-8")
SUMS = re.findall(SUM, TEXT, re.MULTILINE)
TERMS = re.findall(r"^\| `(\w+)` \| .* \| ([\d,. x+()]+) \| ([\d,]+) \|$", TEXT, re.MULTILINE)
WAVE = """
model: qwen3.6-35b-a3b
topology: {ep: 2, cp: 2}
adapter: {expert_rank: 8}
first_gradient_execution: true
groups:
- {attention_rows: [100000, 100000], gdn_rows: [100000, 100000], longest_packed_tokens: 200000}
"""


def test_a_pocket_calculator_multiplies_before_it_adds_and_rounds_nothing():
    assert calculated("2 + 3 x (4 + 1)") == 17
    assert calculated("0.1 x 1,000,003") == Fraction(1_000_003, 10)


@pytest.mark.parametrize(("by_hand", "shown"), SUMS)
def test_every_sum_of_the_page_is_right(by_hand, shown):
    assert calculated(by_hand) == Fraction(shown.replace(",", ""))


@pytest.mark.parametrize(("term", "by_hand", "shown"), TERMS)
def test_every_term_of_the_page_is_its_product(term, by_hand, shown):
    assert calculated(by_hand) == int(shown.replace(",", ""))


def test_the_terms_by_hand_are_all_that_the_estimate_has_and_add_up_to_it():
    estimate = Estimator.load(REPOSITORY / "allowances.yaml", model="qwen3.6-35b-a3b").price(parse_wave(WAVE, where="wave"))
    assert [(term.name, term.bytes) for term in estimate.terms if term.bytes] == [
        (name, calculated(by_hand)) for name, by_hand, _ in TERMS
    ]
    assert estimate.total_bytes == sum(calculated(by_hand) for _, by_hand, _ in TERMS)
    assert len(SUMS) >= 15
