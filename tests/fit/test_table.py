"""Which runs may be fitted together, which sizes get entries, and what an entry says of its evidence."""

from dataclasses import replace
from decimal import Decimal

import pytest

from routing.core.allowance import Generated, entries_hash, entry_faults
from routing.core.errors import InputError
from routing.core.observed import BatchWorst, ExpertLoad, MeasuredRun, ObservedWorsts
from routing.core.shapes import ModelShape
from routing.fit.table import fit_runs

SHAPE = ModelShape(num_layers=4, moe_layers=(1, 3), num_experts=64, top_k=8, hidden_size=8, expert_ffn_size=8)
GENERATED = Generated(tool_version="0.1.0", tool_commit="c0ffee", generated_at="2025-01-01T00:00:00Z")


def _observed(ep, batch_tokens, busiest, *, units=("a", "b")):
    """Batches of 100 rows in which rank 0 of layer 3 holds `busiest` of them."""
    worsts = tuple(
        BatchWorst(batch=batch, layer=3, rank=0, busiest_rows=rows, routed_rows=100) for batch, rows in enumerate(busiest)
    )
    return ObservedWorsts(
        ep=ep,
        batch_tokens=batch_tokens,
        num_tokens=len(busiest) * (batch_tokens + 1),
        dropped_tokens=7,
        units=frozenset(units if busiest else ()),
        worsts=worsts,
        top_experts=(ExpertLoad(expert=5, routed_rows=9),) if busiest else (),
    )


def _run(name, *observed, **changes):
    run = MeasuredRun(
        run=name,
        label=f"label-{name}",
        policy=f"policy/{name}",
        revision=f"revision-{name}",
        weights_sha256=f"weights-{name}",
        shape=SHAPE,
        dtype="bfloat16",
        segment_tokens=1024,
        view="packed",
        order="corpus",
        content_hash=f"content-{name}",
        corpus_hash="corpus",
        is_finished=True,
        observed=observed,
    )
    return replace(run, **changes)


def _fit(*runs):
    table, cautions = fit_runs(runs, model_name="toy", generated=GENERATED)
    assert list(entry_faults(table.entries, SHAPE)) == []
    return table, [caution.code for caution in cautions]


def _allowances(table):
    return {(entry.ep, entry.batch_tokens): (str(entry.allowance), entry.status) for entry in table.entries}


def test_every_size_has_the_allowance_of_its_own_worst_over_all_policies():
    # At 200 tokens 62 x 2 / 100 = 1.24 of run b: 1.324. At 20 tokens 80 x 2 / 100 = 1.6 of run a: 1.81.
    a = _run("a", _observed(2, 200, [55, 61]), _observed(2, 20, [80, 60, 50]))
    b = _run("b", _observed(2, 200, [62, 50]), _observed(2, 20, [70, 60, 50]))
    table, _ = _fit(a, b)
    assert _allowances(table) == {(2, 200): ("1.4", "headroom"), (2, 20): ("1.9", "headroom")}
    assert [entry.evidence.parameters["reference_batch_tokens"] for entry in table.entries] == [200, 200]
    assert table.content_hash == entries_hash(table.model, table.placement, table.entries, table.generated)
    assert (table.model.name, table.model.shape, table.generated) == ("toy", SHAPE, GENERATED)


def test_an_entry_says_what_it_rests_on():
    a = _run("a", _observed(2, 200, [55, 61, 58, 50], units="abc"))
    b = _run("b", _observed(2, 200, [62, 50], units="cd"))
    evidence = _fit(a, b)[0].entries[0].evidence
    assert (evidence.method, evidence.binds, evidence.raw_bound) == ("headroom-v1", "core", Decimal("1.324"))
    assert evidence.parameters["headroom"] == Decimal("1.35")
    assert {name: evidence.parameters[name] for name in ("view", "order", "dtype", "segment_tokens")} == {
        "view": "packed",
        "order": "corpus",
        "dtype": "bfloat16",
        "segment_tokens": 1024,
    }
    assert (evidence.num_batches, evidence.num_units, evidence.num_tokens) == (6, 4, 6 * 201)
    worst = evidence.observed_max
    assert (worst.imbalance, worst.busiest_rows, worst.routed_rows) == (Decimal("1.24"), 62, 100)
    assert (worst.run, worst.label, worst.batch, worst.layer, worst.rank) == ("b", "label-b", 0, 3, 0)
    assert worst.top_experts == (ExpertLoad(expert=5, routed_rows=9),)
    # 50 50 55 58 61 62: the third covers half, the sixth 95%.
    assert (evidence.median, evidence.p95) == (Decimal("1.1"), Decimal("1.24"))
    assert "quantile_disc" in evidence.parameters["quantile_rule"]
    assert evidence.slack == Decimal("0.16")
    assert [(one.layer, one.share) for one in evidence.worst_layers] == [(3, Decimal("1.0000"))]
    policies = [(one.name, one.revision, one.weights_sha256, one.num_batches, one.observed_max) for one in evidence.policies]
    assert policies == [
        ("policy/a", "revision-a", "weights-a", 4, Decimal("1.22")),
        ("policy/b", "revision-b", "weights-b", 2, Decimal("1.24")),
    ]
    assert [(one.content_hash, one.corpus_hash, one.dropped_tokens) for one in evidence.policies] == [
        ("content-a", "corpus", 7),
        ("content-b", "corpus", 7),
    ]


def test_coverage_is_said_in_honest_sentences():
    entry = _fit(_run("a", _observed(8, 200, [25] * 59)))[0].entries[0]
    assert entry.evidence.coverage == (
        "label-a: 59 batches of 200 tokens, 2 units; chance that the next batch passes its observed max = 1/60; "
        "share of batches covered at 95% confidence: 95%.",
        "Only min(EP, E/k) = 8 is proven.",
    )


def test_worst_layers_are_ranked_by_batches_won():
    batches = [(0, 1), (1, 3), (2, 3)]
    worsts = tuple(BatchWorst(batch=batch, layer=layer, rank=0, busiest_rows=60, routed_rows=100) for batch, layer in batches)
    run = _run("a", replace(_observed(2, 200, [60]), worsts=worsts))
    shares = _fit(run)[0].entries[0].evidence.worst_layers
    assert [(one.layer, str(one.share)) for one in shares] == [(3, "0.6667"), (1, "0.3333")]


def test_few_batches_or_units_are_marked():
    strong = _run("a", _observed(2, 200, [60] * 10, units=[str(unit) for unit in range(20)]))
    other = replace(_run("b", *strong.observed))
    assert _fit(strong, other)[1] == ["low_evidence"]  # without their counts nothing is resampled, however much was seen
    assert "not every policy was resampled" in _fit(strong, other)[0].entries[0].evidence.warnings[0]
    assert _fit(strong)[1] == ["low_evidence", "one_policy"]
    assert _fit(strong, _run("b", _observed(2, 200, [60] * 9, units=strong.observed[0].units)))[1] == ["low_evidence"]
    assert _fit(strong, _run("b", _observed(2, 200, [60] * 10)))[1] == ["low_evidence"]


@pytest.mark.fault(
    "one full batch of one run in a fit",
    how="a run of one batch beside a run of two",
    tries=1,
    outcome="its value counts, with a warning",
)
def test_a_run_with_one_batch_has_its_say_where_another_has_two():
    a = _run("a", _observed(2, 200, [55, 60]))
    b = _run("b", _observed(2, 200, [80]))
    table, codes = _fit(a, b)
    assert _allowances(table) == {(2, 200): ("1.9", "headroom")}  # 1 + 1.35 x 0.6 = 1.81
    assert codes == ["low_evidence", "few_batches"]
    assert table.entries[0].evidence.policies[1].num_batches == 1


def test_a_size_without_two_batches_in_any_run_is_left_out():
    a = _run("a", _observed(2, 900, []), _observed(2, 200, [55]), _observed(2, 20, [55, 60]))
    b = _run("b", _observed(2, 900, []), _observed(2, 200, [56]), _observed(2, 20, [55, 60]))
    table, codes = _fit(a, b)
    assert _allowances(table) == {(2, 20): ("1.3", "headroom")}
    assert codes[:2] == ["size_left_out", "size_left_out"]


@pytest.mark.fault(
    "fewer than two batches in a fit", how="a run of one batch", tries=1, outcome="no fit: the proven ceiling with a warning"
)
def test_without_two_batches_anywhere_only_the_ceiling_is_given():
    run = _run("a", *(_observed(ep, size, [55] if size == 20 else []) for ep in (2, 8, 16) for size in (200, 20)))
    table, codes = _fit(run)
    assert _allowances(table) == {(2, 20): ("2", "proven"), (8, 20): ("8", "proven"), (16, 20): ("8.00", "proven")}
    assert codes == ["only_proven"]
    evidence = table.entries[0].evidence
    assert (evidence.num_batches, evidence.observed_max, evidence.binds) == (1, None, "ceiling")


def test_allowances_step_along_divisors_and_never_rise_with_the_batch():
    run = _run(
        "a", _observed(2, 200, [80, 50]), _observed(4, 200, [41, 30]), _observed(2, 20, [60, 50]), _observed(4, 20, [31, 30])
    )
    # EP 2 at 200: 1.6 -> 1.81; EP 4 at 200: 1.64 -> 1.864. At 20: 1.2 -> 1.27 and 1.24 -> 1.324, below those of 200.
    assert _allowances(_fit(run)[0]) == {
        (2, 200): ("1.9", "headroom"),
        (4, 200): ("1.9", "headroom"),
        (2, 20): ("1.9", "headroom"),
        (4, 20): ("1.9", "headroom"),
    }


GOOD = _observed(2, 200, [55, 60])


@pytest.mark.fault(
    "two models, dtypes, segment sizes or views in one fit, one run twice, or an unfinished one",
    how="two runs that differ in one of them",
    tries=8,
    outcome="exit 2, both values named",
)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "a and b: dtype bfloat16 against float32"),
        ({"segment_tokens": 512}, "a and b: segment_tokens 1024 against 512"),
        ({"shape": replace(SHAPE, top_k=4)}, "a and b: top_k 8 against 4"),
        ({"shape": replace(SHAPE, moe_layers=(1, 2))}, r"a and b: moe_layers \(1, 3\) against \(1, 2\)"),
        ({"view": "logical"}, "a and b: view packed against logical"),
        ({"content_hash": "content-a"}, "a and b: the same counts twice"),
        ({"is_finished": False}, "b: unfinished"),
        ({"content_hash": None}, "b: unfinished"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        _fit(_run("a", GOOD), _run("b", GOOD, **changes))


def test_no_run_is_no_fit():
    with pytest.raises(InputError, match="no run"):
        fit_runs([], model_name="toy", generated=GENERATED)
