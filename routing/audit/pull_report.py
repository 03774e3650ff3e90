"""A report as short Markdown for a pull request: the verdict, the numbers to plan with, what speaks against them."""

from collections.abc import Iterator

from routing.audit.advice import stands
from routing.audit.entries import EntryFacts
from routing.audit.facts import Facts
from routing.audit.pull_request import code, plain
from routing.audit.verdict import furthest, judge
from routing.audit.words import DASH, audit_title, exact, gigabytes, number_of, percent, ratio, signed, size

MARK = "<!-- routing report -->"  # tells a file of ours from any other
MAX_ROWS = 30
MAX_ABOVE = 10
_WORDS = {"holds": "Holds.", "fails": "Fails.", "open": "Open."}


def report_markdown(facts: Facts) -> str:
    """Names and sentences with names in them are code, letter by letter escaped."""
    verdict = judge(facts)
    lines = [
        MARK,
        f"### Routing audit of {code(_title(facts))}: {_WORDS[verdict.kind]} {verdict.headline}",
        "",
        f"**What to do.** {plain(verdict.action)}",
        "",
        *(f"- {plain(sentence)}" for sentence in verdict.sentences),
        "",
        *_allowances(facts),
        *_above(facts),
        *_peaks(facts),
        "Not covered:",
        "",
        *(f"- {plain(sentence)}" for sentence in verdict.not_covered),
        "",
        f"Table {code(facts.table_name)}, content {code(facts.table.content_hash[:16])}; "
        f"{number_of(len(facts.runs), 'run')}: {', '.join(code(run.run) for run in facts.runs) or DASH}.",
        "",
    ]
    return "\n".join(lines)


def _title(facts: Facts) -> str:
    return audit_title(facts.table.model, [run.name for run in facts.runs])


def _allowances(facts: Facts) -> Iterator[str]:
    before = {(one.entry.ep, one.entry.batch_tokens, one.entry.layer): one for one in facts.against or ()}
    has_before = facts.against is not None
    yield f"| EP | batch tokens | layer | allowance |{' before | change |' if has_before else ''} seen | slack | status | here |"
    yield f"|---:|---:|---:|---:|{'---:|---:|' if has_before else ''}---:|---:|---|---|"
    shown = sorted(facts.entries, key=lambda one: (one.entry.layer != "all", one.outcome != "exceeded"))
    for one in shown[:MAX_ROWS]:
        cells = [str(one.entry.ep), size(one.entry.batch_tokens), str(one.entry.layer), f"**{exact(one.entry.allowance)}**"]
        if has_before:
            moved = before.get((one.entry.ep, one.entry.batch_tokens, one.entry.layer))
            cells.append(exact(moved.committed.allowance) if moved is not None and moved.committed is not None else DASH)
            cells.append(signed(moved.delta, 1) if moved is not None else DASH)
        cells += [ratio(one.seen), ratio(one.slack), one.entry.status, _outcome(one)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if len(shown) > MAX_ROWS:
        yield f"And {number_of(len(shown) - MAX_ROWS, 'more entry', 'more entries')}, on the page.\n"


def _outcome(one: EntryFacts) -> str:
    return "**does not hold**" if one.outcome == "exceeded" else stands(one)


def _above(facts: Facts) -> Iterator[str]:
    above = furthest(facts.comparisons, MAX_ABOVE)
    if not above:
        return
    yield "| above at EP | batch tokens | allowance | factor | policy | layer | batch | rank |"
    yield "|---:|---:|---:|---:|---|---:|---:|---:|"
    for one, place in above:
        worst, entry = one.above[place].worst, one.entry
        cells = (entry.ep, size(entry.batch_tokens), exact(entry.allowance), ratio(worst.ratio(entry.ep)))
        where = (code(one.identity.label), worst.layer, worst.batch, worst.rank)
        yield f"| {' | '.join(map(str, (*cells, *where)))} |"
    yield ""


def _peaks(facts: Facts) -> Iterator[str]:
    if not facts.peaks:
        return
    yield "| wave | state | EP / CP | estimate | measured peak | over | over without HybridEP | source |"
    yield "|---|---|---|---:|---:|---:|---:|---|"
    for one in facts.peaks:
        without = percent(one.over_fraction_without_hybridep)
        cells = (
            code(one.peak.wave),
            one.peak.state,
            f"{one.ep} / {one.cp}",
            gigabytes(one.estimate_bytes, 4),
            gigabytes(one.peak.measured_bytes, 4),
            percent(one.over_fraction),
            f"**{without}, under**" if one.is_under else without,
            code(one.peak.source),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
