"""Published maxima in, an allowance table out: `headroom-v1` where others counted and told only the largest.

    core(n)   from the largest `measured` value over policies at the reference batch size
    floor(n)  every other value at n that was seen or inferred: `small_sample`, `inferred`, `measured` at another size
    `context` is told beside the entry and bounds nothing

Entries have status `published`: no count of ours is behind them, and none can be repeated here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from routing.core.allowance import (
    ALLOWANCE_GRID,
    AllowanceTable,
    Entry,
    Evidence,
    Floor,
    Generated,
    ObservedMax,
    PolicyEvidence,
    TableModel,
)
from routing.core.errors import InputError
from routing.core.observed import Caution
from routing.core.published import PublishedWorst
from routing.core.units import format_size
from routing.fit.evidence import fine, slack
from routing.fit.headroom import HEADROOM, METHOD, headroom_allowances
from routing.fit.implied import implied_entries
from routing.fit.sentences import ceiling_sentence, coverage_sentence
from routing.fit.steps import Allowed
from routing.fit.table import assemble

UNIT = "not stated by the source"
BATCHES_RULE = "tokens // batch_tokens: the source states no number of batches"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claims:
    """The rows of one EP size: what the core is fitted to, what is a floor, what is told beside it."""

    ep: int
    core: tuple[PublishedWorst, ...]
    floors: tuple[PublishedWorst, ...]
    context: tuple[PublishedWorst, ...]

    @property
    def worst(self) -> PublishedWorst:
        """The first of the largest that the core is fitted to."""
        return max(self.core, key=lambda row: row.worst_imbalance)

    @property
    def highest_floor(self) -> PublishedWorst | None:
        """The first of the largest floors."""
        return max(self.floors, key=lambda row: row.worst_imbalance, default=None)


def fit_published(
    rows: Sequence[PublishedWorst],
    *,
    model: TableModel,
    reference_batch_tokens: int,
    generated: Generated,
    eps: Sequence[int] = (),
) -> tuple[AllowanceTable, tuple[Caution, ...]]:
    """(An entry for every EP size of the rows at the reference batch size, what the table rests on).

    Those of `eps` that no row is about get entries that the others imply. Raises InputError for one that doesn't divide the
    experts, and for rows without a measured value at the reference: a floor alone fits nothing.
    """
    claims = [_claims(rows, ep, reference_batch_tokens) for ep in sorted({row.ep for row in rows})]
    if not claims:
        raise InputError("published figures: no row")
    floors = {one.ep: Fraction(floor.worst_imbalance) for one in claims if (floor := one.highest_floor) is not None}
    worsts = {one.ep: Fraction(one.worst.worst_imbalance) for one in claims}
    fitted = headroom_allowances(worsts, num_experts=model.num_experts, top_k=model.top_k, floors=floors)
    entries = tuple(
        Entry(
            ep=one.ep,
            batch_tokens=reference_batch_tokens,
            layer="all",
            allowance=fitted[one.ep].allowance,
            status="published",
            evidence=_evidence(one, fitted[one.ep], reference_batch_tokens),
        )
        for one in claims
    )
    implied = tuple(implied_entries(entries, eps=eps, model=model))
    rests = [sentence for one in claims for _, sentence in _rests_on(one, fitted[one.ep])]
    rests += [f"EP {one.ep} has no data and is implied by {one.evidence.binds}" for one in implied]
    return assemble((*entries, *implied), model, generated), (Caution(code="published", message="; ".join(rests)),)


def _claims(rows: Sequence[PublishedWorst], ep: int, batch_tokens: int) -> _Claims:
    here = [row for row in rows if row.ep == ep]
    core = tuple(row for row in here if (row.kind, row.batch_tokens) == ("measured", batch_tokens))
    if not core:
        raise InputError(f"published figures: ep={ep} has no measured row of {batch_tokens} tokens to fit from")
    return _Claims(
        ep=ep,
        core=core,
        floors=tuple(row for row in here if row.kind != "context" and row not in core),
        context=tuple(row for row in here if row.kind == "context"),
    )


def _evidence(claims: _Claims, fitted: Allowed, batch_tokens: int) -> Evidence:
    worst = claims.worst
    return Evidence(
        method=METHOD,
        parameters={
            "evidence": "published",
            "headroom": HEADROOM,
            "reference_batch_tokens": batch_tokens,
            "num_batches_rule": BATCHES_RULE,
        },
        raw_bound=fine(fitted.raw_bound),
        grid=ALLOWANCE_GRID,
        ceiling=fitted.ceiling,
        ceiling_reason=fitted.ceiling_reason,
        binds=fitted.binds,
        num_batches=sum(row.num_batches for row in claims.core),
        num_units=None,
        unit=UNIT,
        num_tokens=sum(row.tokens or 0 for row in claims.core),
        observed_max=ObservedMax(
            imbalance=worst.worst_imbalance,
            busiest_rows=None,
            routed_rows=None,
            run=None,
            label=_label(worst),
            batch=None,
            layer=None,
            rank=None,
            top_experts=(),
        ),
        median=None,
        p95=None,
        slack=slack(fitted.allowance, Fraction(worst.worst_imbalance)),
        worst_layers=(),
        floors=tuple(_floor(row) for row in claims.floors),
        coverage=(
            *(coverage_sentence(_label(row), row.num_batches, batch_tokens, None) for row in claims.core),
            *(f"Told beside it and no bound: {_label(row)}, {row.worst_imbalance}: {row.source}." for row in claims.context),
            ceiling_sentence(fitted.ceiling),
        ),
        warnings=tuple(f"{code}: {sentence}" for code, sentence in _warnings(claims, fitted, batch_tokens)),
        policies=tuple(_policy(row) for row in claims.core),
    )


def _label(row: PublishedWorst) -> str:
    return f"{row.policy} (published)"


def _floor(row: PublishedWorst) -> Floor:
    return Floor(
        value=row.worst_imbalance,
        source=f"{row.source} (published: {row.policy})",
        kind="inferred" if row.kind == "inferred" else "measured",
        batch_tokens=row.batch_tokens,
        layer="all",
    )


def _policy(row: PublishedWorst) -> PolicyEvidence:
    return PolicyEvidence(
        run=None,
        label=_label(row),
        name=row.policy,
        revision=None,
        weights_sha256=None,
        content_hash=None,
        corpus_hash=None,
        num_batches=row.num_batches,
        num_tokens=row.tokens or 0,
        dropped_tokens=None,
        num_units=None,
        observed_max=row.worst_imbalance,
        median=None,
        p95=None,
    )


def _warnings(claims: _Claims, fitted: Allowed, batch_tokens: int) -> Iterator[tuple[str, str]]:
    fewest = min(claims.core, key=lambda row: row.num_batches)
    num_batches = fewest.num_batches
    yield "published", "figures of their authors; nothing here was measured or can be counted again by this program"
    yield "low_evidence", f"maxima only, at least {num_batches} batches of each policy, what moved together is not stated"
    yield (
        "next_batch",
        f"{format_size(fewest.tokens or 0)} tokens are {num_batches} batches of {format_size(batch_tokens)}: "
        f"the next batch passes the largest of {num_batches} once in {num_batches + 1}",
    )
    yield from _rests_on(claims, fitted)


def _rests_on(claims: _Claims, fitted: Allowed) -> Iterator[tuple[str, str]]:
    """(code, sentence) where one value from outside decides, or where nothing but the reference batches was looked at."""
    floor = claims.highest_floor
    if floor is None:
        yield "no_small_batches", f"EP {claims.ep} has no small-batch evidence"
    elif fitted.binds == "floor":
        code, words = {
            "small_sample": ("one_small_sample", "one small sample"),
            "inferred": ("one_inferred_value", "one inferred value"),
        }.get(floor.kind, ("one_other_size", f"one maximum of batches of {floor.batch_tokens} tokens"))
        left = fitted.allowance - floor.worst_imbalance
        yield code, f"EP {claims.ep} rests on {words} ({floor.worst_imbalance}, {floor.source}; the allowance leaves {left})"
