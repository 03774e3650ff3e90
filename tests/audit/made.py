"""Entries, comparisons and page facts made by hand, with no run behind them."""

from dataclasses import replace
from decimal import Decimal

from routing.audit.claims import CutRun, RunIdentity
from routing.audit.entries import entry_facts
from routing.audit.facts import Facts, LayerRow, Query, RunFacts, WorstRow
from routing.core.allowance import (
    AllowanceTable,
    Entry,
    Evidence,
    Generated,
    ObservedMax,
    PolicyEvidence,
    TableModel,
    entries_hash,
)
from routing.core.judgement import HeldOut
from routing.core.observed import BatchWorst
from routing.core.shapes import ModelShape

QUERIES = ("imbalance", "imbalance_by_layer", "worst_rank_loads", "worst_distribution")
SHAPE = ModelShape(num_layers=2, moe_layers=(0, 1), num_experts=8, top_k=2, hidden_size=8, expert_ffn_size=8)
RUN = RunIdentity(run="one", label="base", policy="made/base", content_hash="c" * 64, corpus_hash="d" * 64)


def held_out(kind="units", *, num_above, num_batches=20, allowance="1.2", part="half"):
    """What a fit without a part of the run `one` allows, and how many of that part's batches are above it."""
    return HeldOut(
        kind=kind,
        run="one",
        label="base",
        part=part,
        method="strat-boot-v1",
        allowance=Decimal(allowance),
        num_batches=num_batches,
        num_above=num_above,
        worst=None,
        above=(),
    )


def judged(one, *parts):
    """`one` with these held-out results, by the rule that they were fitted with."""
    return replace(one, evidence=replace(one.evidence, held_out=parts, method="strat-boot-v1"))


def policy_evidence(identity=RUN, *, num_batches=17, observed_max="1.25"):
    """What an entry says of one run."""
    value = None if observed_max is None else Decimal(observed_max)
    return PolicyEvidence(
        run=identity.run,
        label=identity.label,
        name=identity.policy,
        revision="r" * 40,
        weights_sha256="w" * 64,
        content_hash=identity.content_hash,
        corpus_hash=identity.corpus_hash,
        num_batches=num_batches,
        num_tokens=num_batches * 10,
        dropped_tokens=3,
        num_units=5,
        observed_max=value,
        median=value,
        p95=value,
    )


def entry(allowance="1.4", *, ep=2, batch_tokens=10, layer="all", ceiling="2.0", policies=None, warnings=(), parameters=None):
    """One allowance whose evidence saw 1.25 in layer 1, batch 3 of the run `one`."""
    return Entry(
        ep=ep,
        batch_tokens=batch_tokens,
        layer=layer,
        allowance=Decimal(allowance),
        status="headroom",
        evidence=Evidence(
            method="headroom-v1",
            parameters=parameters or {},
            raw_bound=Decimal("1.3375"),
            grid=Decimal("0.1"),
            ceiling=Decimal(ceiling),
            ceiling_reason="ep = 2: one rank can hold every row, not more",
            binds="core",
            num_batches=17,
            num_units=5,
            unit="task",
            num_tokens=170,
            observed_max=ObservedMax(
                imbalance=Decimal("1.25"),
                busiest_rows=25,
                routed_rows=40,
                run="one",
                label="base",
                batch=3,
                layer=1,
                rank=0,
                top_experts=(),
            ),
            median=Decimal("1.2"),
            p95=Decimal("1.25"),
            slack=Decimal("0.15"),
            worst_layers=(),
            floors=(),
            coverage=("base: 17 batches of 10 tokens, 5 units.", "Only min(EP, E/k) = 2.0 is proven."),
            warnings=tuple(warnings),
            policies=(policy_evidence(),) if policies is None else tuple(policies),
        ),
    )


def table(*entries, override=None):
    """A table of the model `made`."""
    model = TableModel(
        name="made", shape_hash=SHAPE.shape_hash, aliases=(), **{name: getattr(SHAPE, name) for name in ModelShape.__slots__}
    )
    generated = Generated(tool_version="0", tool_commit=None, generated_at="2025-01-01T00:00:00Z")
    return AllowanceTable(
        schema_version=2,
        model=model,
        placement="contiguous",
        generated=generated,
        entries=tuple(entries),
        content_hash=entries_hash(model, "contiguous", tuple(entries), generated),
        override=override,
    )


def cut(*busiest, ep=2, batch_tokens=10, routed_rows=40, identity=RUN, num_batches=None, dropped_tokens=3):
    """A run of which `busiest` gives (batch, layer, rows of the busiest rank), always rank 0."""
    layers = tuple(
        BatchWorst(batch=batch, layer=layer, rank=0, busiest_rows=rows, routed_rows=routed_rows) for batch, layer, rows in busiest
    )
    found = len({one.batch for one in layers}) if num_batches is None else num_batches
    return CutRun(
        identity=identity,
        ep=ep,
        batch_tokens=batch_tokens,
        num_batches=found,
        num_tokens=found * batch_tokens,
        dropped_tokens=dropped_tokens,
        layers=layers,
    )


def facts(the_table, comparisons, *, names=("base",), markings=(), num_batches=2, num_without_router=0):
    """A page's facts: each run with one row at EP 2 and batches of 10 tokens, worst 1.5 in layer 1, 1.25 in layer 0."""
    has_batches = num_batches > 0
    worst = WorstRow(
        ep=2,
        batch_tokens=10,
        num_batches=num_batches,
        num_tokens=10 * num_batches,
        dropped_tokens=3,
        worst_imbalance=1.5 if has_batches else None,
        worst_layer=1 if has_batches else None,
        worst_batch=0 if has_batches else None,
        worst_rank=0 if has_batches else None,
        mean_over_layers=1.375 if has_batches else None,
        pooled_over_layers=1.125 if has_batches else None,
    )
    layers = tuple(LayerRow(ep=2, batch_tokens=10, layer=layer, worst_imbalance=1.25 + layer / 4) for layer in (0, 1))
    runs = tuple(
        RunFacts(
            name=name,
            run="one",
            label=name,
            origin="measured",
            policy="made/base",
            architecture="made",
            markings=markings,
            num_layers=2,
            num_moe_layers=2,
            num_experts=8,
            top_k=2,
            tokens_packed=1_234_567,
            tokens_logical=2_000_000,
            num_trajectories=3,
            files=(),
            refused=(("router", num_without_router),) if num_without_router else (),
            num_without_router=num_without_router,
            provenance=(("content hash", "c" * 64), ("chat template sha256", "")),
            content_hash="c" * 64,
            corpus_hash="d" * 64,
            worsts=(worst,),
            layers=layers if has_batches else (),
        )
        for name in names
    )
    return Facts(
        table=the_table,
        table_name="allowances.yaml",
        runs=runs,
        entries=entry_facts(the_table, comparisons),
        proposals=(),
        view="packed",
        order="corpus",
        checks=("rows_conserved",),
        queries=tuple(Query(name=f"sql/{name}.sql", text="") for name in QUERIES),
        provenance=(),
    )
