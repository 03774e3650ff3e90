"""Facts and a template to one HTML page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from routing.audit import words
from routing.audit.advice import advices, rests_on, stands
from routing.audit.claims import Comparison
from routing.audit.entries import EntryFacts
from routing.audit.facts import Facts, RunFacts
from routing.audit.figures import reference_size, series_figures
from routing.audit.grid_figures import grid_figures, peak_figure
from routing.audit.peaks import untested_eps
from routing.audit.reach import limits, reach, stated, uncalibrated
from routing.audit.verdict import furthest, judge
from routing.audit.words import beside, count, dash, exact, gigabytes, listed, number_of, percent, quoted, ratio, signed, size
from routing.core.coverage import covered_percent
from routing.core.judgement import HeldOut
from routing.core.observed import BatchWorst

NUM_SHOWN_ABOVE = 50
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class AboveRow:
    """A batch above its allowance, as the page lists it."""

    comparison: Comparison
    worst: BatchWorst
    num_layers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """Each layer's largest imbalance at one batch size, a column for each run and EP size."""

    batch_tokens: int
    columns: tuple[tuple[str, int], ...]
    rows: tuple[tuple[int, tuple[float | None, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusLine:
    """What one or several runs read, in words and numbers; `num_units` is None where a run can't say."""

    whose: str
    num_trajectories: int
    num_units: int | None
    files: str


def page(template: str, facts: Facts) -> str:
    """`template` filled; every value is escaped, and a name that the template misspells is an error."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters = (
        *(ratio, exact, count, size, dash, listed, number_of, percent, signed, gigabytes),
        *(share, quoted, beside, short, breakable, covered_percent),
    )
    environment.filters.update({one.__name__: one for one in filters})
    above, chosen = furthest(facts.comparisons, NUM_SHOWN_ABOVE), reference_size(facts.runs)
    drawn = () if chosen is None else (*series_figures(facts, chosen), *grid_figures(facts, chosen))
    return environment.from_string(template).render(
        facts=facts,
        title=title(facts),
        sections=sections(facts),
        verdict=judge(facts),
        reach=reach(facts),
        limits=limits(facts),
        stated=stated(facts),
        advices=advices(facts),
        figures={one.name: one for one in drawn},
        peak_figure=peak_figure(facts.peaks),
        untested=untested_eps([one.entry.ep for one in facts.entries], facts.peaks),
        queries={one.name: one.text for one in facts.queries},
        uncalibrated=uncalibrated(facts),
        calibrated=tuple(sorted({one.batch_tokens for one in facts.calibrations}, reverse=True)),
        held_out=[judged for one in facts.entries if one.entry.layer == "all" for judged in one.entry.evidence.held_out or ()],
        grid_sizes=sorted({one.entry.batch_tokens for one in facts.entries if one.entry.layer == "all"}, reverse=True),
        above=tuple(
            AboveRow(comparison=one, worst=one.above[place].worst, num_layers=one.above[place].num_layers) for one, place in above
        ),
        num_above=sum(len(one.above) for one in facts.comparisons),
        layer_table=layer_table(facts.runs),
        corpora=corpora(facts.runs),
        held_out_part=held_out_part,
        of_another_rule=of_another_rule(facts.entries),
        binding=binding,
        rests_on=rests_on,
        stands=stands,
    )


def corpora(runs: Sequence[RunFacts]) -> tuple[CorpusLine, ...]:
    """A line for each corpus, in the order of the runs."""
    found: dict[str, list[RunFacts]] = {}
    for run in runs:
        found.setdefault(run.corpus_hash, []).append(run)
    return tuple(_corpus_line(same, len(runs)) for same in found.values())


def _corpus_line(same: Sequence[RunFacts], num_runs: int) -> CorpusLine:
    one, names = same[0], [file.name for file in same[0].files]
    whose = "It" if num_runs == 1 else listed(quoted(run.name) for run in same)
    if len(same) > 1 and len(same) == num_runs:
        whose = "Both" if num_runs == 2 else f"All {num_runs}"
    rest = [f"{len(names) - 1} more"] if len(names) > words.MOST_NAMED else names[1:]
    return CorpusLine(
        whose=f"{whose} read{' the same text:' if len(same) > 1 else ''}",
        num_trajectories=one.num_trajectories,
        num_units=one.num_units,
        files=f"{number_of(len(names), 'file')} ({listed([*names[:1], *rest])})" if names else "no file that is named",
    )


def held_out_part(judged: HeldOut) -> str:
    """What was held out, by the page's words."""
    if judged.kind == "stratum":
        return f"source {judged.part.removeprefix('stratum ')}"
    return judged.part if judged.part.startswith(judged.kind) else f"{judged.kind}: {judged.part}"


def of_another_rule(entries: Sequence[EntryFacts]) -> str:
    """Said where a reduced fit is by another rule than the entry that it is told of; empty where none is."""
    kept = [one.entry.evidence for one in entries if one.entry.layer == "all"]
    others = [judged.method for one in kept for judged in one.held_out or () if judged.method != one.method]
    if not others:
        return ""
    rules = listed(sorted(set(others)))
    return f" {len(others):,} of these fits had too little for the entry's own rule and went by {rules}."


def layer_table(runs: Sequence[RunFacts]) -> LayerTable | None:
    """The numbers behind the chart by layer; None without a full batch."""
    chosen = reference_size(runs)
    if chosen is None:
        return None
    found = {
        (run.name, row.ep, row.layer): row.worst_imbalance for run in runs for row in run.layers if row.batch_tokens == chosen
    }
    eps, layers = sorted({ep for _, ep, _ in found}), sorted({layer for *_, layer in found})
    columns = tuple((run.name, ep) for run in runs for ep in eps)
    rows = tuple((layer, tuple(found.get((name, ep, layer)) for name, ep in columns)) for layer in layers)
    return LayerTable(batch_tokens=chosen, columns=columns, rows=rows)


def title(facts: Facts) -> str:
    """The runs, else the model, with its shape."""
    return words.audit_title(facts.table.model, [run.name for run in facts.runs])


def sections(facts: Facts) -> tuple[tuple[str, str], ...]:
    """(id, name) of what the page has, in its order."""
    found = [
        ("numbers", "which number to use", any(one.entry.layer == "all" for one in facts.entries)),
        ("above", "batches above", any(one.above for one in facts.comparisons)),
        ("not-covered", "what is not covered", True),
        ("measured", "what was measured", bool(facts.runs)),
        ("charts", "charts", bool(facts.runs)),
        ("policies", "policies side by side", len(facts.runs) > 1 and reference_size(facts.runs) is not None),
        ("peaks", "memory", True),
        ("held-out", "held-out tests", True),
        ("evidence", "evidence", True),
        ("against", "earlier table", facts.against is not None),
        ("words", "words", True),
        ("provenance", "provenance", True),
        ("queries", "SQL", True),
    ]
    return tuple((name, what) for name, what, is_there in found if is_there)


def short(text: str) -> str:
    """`text` with twelve digits of each hash: what tells two apart; audit.json has them whole."""
    return _HASH.sub(r"\1", text)


def breakable(text: str) -> Markup:
    """`text` that a narrow column may break after `_` and `/`, and not in the middle of a word."""
    return Markup(re.sub(r"([_/])", r"\1<wbr>", str(escape(text))))


def share(value: float, digits: int = 3) -> str:
    """A share of batches in percent; three digits after the point are what a calibration resolves."""
    return f"{100 * value:.{digits}f}%"


def binding(one: EntryFacts) -> str:
    """What made the allowance as large as it is, in words."""
    return words.binding(one.entry.evidence.binds)
