"""Fits without a part of the counts, held against that part: an exceedance is named, and never called validated."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from routing.core.allowance import Generated
from routing.core.observed import MeasuredRun, ObservedWorsts
from routing.core.shapes import ModelShape
from routing.fit import judge, resample
from routing.fit.counts import Counts
from routing.fit.judge import Fitted, halves_of, held_out_sentence, hold, judged_halves
from routing.fit.recut import real_batches
from routing.fit.sentences import more_units_sentence
from routing.fit.steps import Raw
from routing.fit.table import fit_runs

SHAPE = ModelShape(num_layers=4, moe_layers=(1, 3), num_experts=4, top_k=1, hidden_size=8, expert_ffn_size=8)
GENERATED = Generated(tool_version="0.1.0", tool_commit=None, generated_at="2025-01-01T00:00:00Z")
NUM_UNITS = 48


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(resample, "NUM_BATCHES", 100)
    monkeypatch.setattr(resample, "NUM_POOLS", 10)


def _counts(*, odd=(), strata=1):
    """A unit is one trajectory of one segment of 10 tokens, 100 rows a layer over four experts; so is a batch of 10 tokens.

    Layer 1 is even. In layer 3 experts 0 and 1 hold 50 to 53 rows; of an odd unit, expert 0 holds all 100.
    """
    ids = np.arange(NUM_UNITS)
    loads = np.full((NUM_UNITS, 4, 2), 25.0)
    loads[:, 0, 1] += ids % 4
    loads[:, 3, 1] -= ids % 4
    for unit in odd:
        loads[unit, :, 1] = (100, 0, 0, 0)
    return Counts(
        trajectory_ids=ids,
        segment_ids=ids,
        num_tokens=np.full(NUM_UNITS, 10),
        units_T=ids,
        strata_T=ids % strata,
        unit_names=tuple(f"task/{unit}" for unit in ids),
        stratum_names=tuple(f"file-{stratum}" for stratum in range(strata)),
        layers=(1, 3),
        loads_SBL=loads,
    )


def _run(counts, name="run", *, sizes=(10,)):
    observed = []
    for ep in (2, 4):
        for size in sizes:
            worsts = real_batches(counts, batch_tokens=size, eps=(2, 4)).worsts(ep)
            tokens = size * len(worsts)
            observed.append(
                ObservedWorsts(
                    ep=ep,
                    batch_tokens=size,
                    num_tokens=tokens,
                    dropped_tokens=10 * NUM_UNITS - tokens,
                    units=counts.units,
                    worsts=worsts,
                    top_experts=(),
                )
            )
    return MeasuredRun(
        run=name,
        label=f"label-{name}",
        policy=f"policy/{name}",
        revision="revision",
        weights_sha256=f"weights-{name}",
        shape=SHAPE,
        dtype="float32",
        segment_tokens=1024,
        view="packed",
        order="corpus",
        content_hash=f"content-{name}",
        corpus_hash="corpus",
        is_finished=True,
        observed=tuple(observed),
    )


def _table(*pairs):
    runs, counts = [run for run, _ in pairs], [one for _, one in pairs]
    return fit_runs(runs, counts=counts, model_name="policy/run", generated=GENERATED)[0]


def test_halves_share_no_unit_and_leave_none_out():
    names = frozenset(map(str, range(7)))
    first, second = halves_of(names, "hash")
    assert (len(first), len(second)) == (4, 3)
    assert first | second == names
    assert not first & second
    assert halves_of(names, "hash") == (first, second)


def test_a_planted_unit_is_named_by_the_half_that_never_saw_it():
    counts = _counts(odd=(5,))
    run = _run(counts)
    found = dict.fromkeys((2, 4), ())
    for (_, ep), one in judged_halves(run, counts, sizes=(10,), eps=(2, 4)):
        found[ep] += (one,)
    halves = halves_of(counts.units, "content-run")
    holder = next(half for half in halves if "task/5" in half)
    for ep, factor in ((2, Decimal("2.0")), (4, Decimal("4.0"))):
        above = [one for one in found[ep] if one.num_above]
        assert [one.num_batches for one in found[ep]] == [24, 24]
        assert [(one.run, one.num_above, one.worst) for one in above] == [("run", 1, factor)]
        place = [unit for unit in range(NUM_UNITS) if f"task/{unit}" in holder].index(5)
        listed = above[0].above[0]
        assert (listed.batch, listed.layer, listed.rank, listed.imbalance) == (place, 3, 0, factor)
        assert "; not validated." in held_out_sentence(above[0], ep=2, batch_tokens=10)


def test_a_run_whose_half_is_above_is_never_called_validated():
    odd, clean = _counts(odd=(5,)), _counts()
    for entry in _table((_run(odd), odd)).entries:
        warning = next(one for one in entry.evidence.warnings if one.startswith("not_validated: run: "))
        assert warning.endswith("1 of 24 held-out batches are above what the other half of its units allows")
        assert any("; not validated." in sentence for sentence in entry.evidence.coverage)
        assert not any(": validated" in sentence for sentence in entry.evidence.coverage)
    for entry in _table((_run(clean), clean)).entries:
        assert not any(one.startswith("not_validated") for one in entry.evidence.warnings)
        halves = [one for one in entry.evidence.held_out if one.kind == "units"]
        assert [(one.num_batches, one.num_above, one.method) for one in halves] == [(24, 0, "strat-boot-v3")] * 2
        assert not any("not validated" in sentence for sentence in entry.evidence.coverage)
        assert "label-run: validated on either half of its units against the other; that is no proof." in entry.evidence.coverage


def test_halves_by_another_rule_validate_nothing(monkeypatch):
    """As with fewer than 40 units, whose halves are too few for the rule of the whole."""
    monkeypatch.setattr(judge, "is_enough", lambda *_: False)
    clean = _counts()
    for entry in _table((_run(clean), clean)).entries:
        assert {one.method for one in entry.evidence.held_out if one.kind == "units"} == {"headroom-v1"}
        assert entry.evidence.method == "strat-boot-v3"
        assert not any(": validated" in sentence for sentence in entry.evidence.coverage)
        said = next(sentence for sentence in entry.evidence.coverage if "is above what the other allows, but" in sentence)
        assert said.endswith("but the halves were fitted by headroom-v1, with too little for strat-boot-v3.")


def test_held_out_batches_are_counted_exactly():
    # 53 x 2 / 100 = 1.06: above 1.0 and at 1.06 not above itself; rounded up to 0.1 it is within 1.1.
    counts = _counts()
    batches = {10: real_batches(counts, batch_tokens=10, eps=(2,))}
    for raw, num_above in ((Fraction(1), 36), (Fraction(106, 100), 0)):
        fitted = Fitted(raws={(10, 2): Raw(value=raw, binds="x")}, methods={10: "made"})
        ((place, one),) = hold(_run(counts), fitted, batches, kind="policy", part="made")
        assert (place, one.num_batches, one.num_above) == ((10, 2), 48, num_above)
        assert (one.kind, one.method, one.worst) == ("policy", "made", Decimal("1.06"))
        assert len(one.above) == min(num_above, 20)
        if num_above:  # the largest first, the earliest of equals: 53 rows in units 3, 7, 11
            assert [listed.batch for listed in one.above[:3]] == [3, 7, 11]


@pytest.mark.parametrize(
    ("num_batches", "num_units", "said"),
    [
        # 17 batches of 115 units: (59 - 17) x 115 / 17 = 284.1, (299 - 17) x 115 / 17 = 1907.6.
        (17, 115, "285 more for 95%, 1908 more for 99%"),
        (59, 20, "0 more for 95%, 82 more for 99%"),  # 240 x 20 / 59 = 81.4
        (299, 30, "0 more for 95%, 0 more for 99%"),
    ],
)
def test_more_units_follow_from_the_batches_that_95_of_100_need(num_batches, num_units, said):
    # n batches cover the share s at 95% confidence where s**n <= 0.05: 0.95**59 = 0.0485, 0.99**299 = 0.0495.
    assert 0.95**59 <= 0.05 < 0.95**58
    assert 0.99**299 <= 0.05 < 0.99**298
    assert said in more_units_sentence("label", num_batches, num_units)


def test_the_order_of_runs_changes_no_allowance_and_no_judgement():
    one, two = _counts(), _counts(odd=(7,))
    pairs = [(_run(one, "run"), one), (_run(two, "other"), two)]
    found = [
        {
            (entry.ep, entry.batch_tokens): (
                entry.allowance,
                replace(entry.evidence, policies=(), coverage=(), held_out=None, warnings=()),
                frozenset(entry.evidence.warnings),
                frozenset(entry.evidence.coverage),
                frozenset(entry.evidence.held_out),
            )
            for entry in _table(*ordered).entries
        }
        for ordered in (pairs, pairs[::-1])
    ]
    assert found[0] == found[1]


def test_a_stratum_unlike_the_others_is_named_by_the_fit_without_it():
    # Odd numbers are stratum 1; unit 5 alone is unlike the others.
    counts = _counts(odd=(5,), strata=2)
    entries = _table((_run(counts), counts)).entries
    assert [(entry.ep, entry.batch_tokens) for entry in entries] == [(2, 10), (4, 10)]
    for entry, factor in zip(entries, (Decimal("2.0"), Decimal("4.0")), strict=True):
        first, second = (one for one in entry.evidence.held_out if one.kind == "stratum")
        assert (first.part, first.num_above, first.num_batches) == ("stratum file-0", 0, 24)
        assert (second.part, second.num_above, second.num_batches, second.worst) == ("stratum file-1", 1, 24, factor)
        assert [(listed.batch, listed.layer, listed.imbalance) for listed in second.above] == [(2, 3, factor)]  # 1, 3, 5
        assert any("held out stratum file-1: 1 of 24" in sentence for sentence in entry.evidence.coverage)


@pytest.mark.parametrize(("copies", "sizes", "is_marked"), [(1, (20,), True), (7, (20,), False), (1, (30,), False)])
def test_too_few_trajectories_are_marked_where_one_of_them_can_be_a_batch(copies, sizes, is_marked):
    # 48 trajectories of 10 tokens are below 299, 336 are not; a batch of 30 tokens is more than twice one.
    counts = _counts()
    ids = np.arange(copies * NUM_UNITS)
    counts = replace(
        counts,
        trajectory_ids=ids,
        segment_ids=ids,
        num_tokens=np.full(len(ids), 10),
        units_T=ids % NUM_UNITS,
        strata_T=np.zeros_like(ids),
        loads_SBL=np.tile(counts.loads_SBL, (copies, 1, 1)),
    )
    warnings = _table((_run(counts, sizes=sizes), counts)).entries[0].evidence.warnings
    marked = [one for one in warnings if one.startswith("low_evidence: run: 48 trajectories, any of which may be a batch")]
    assert len(marked) == is_marked


def test_one_stratum_is_not_left_out():
    counts = _counts()
    assert {one.kind for one in _table((_run(counts), counts)).entries[0].evidence.held_out} == {"units"}
