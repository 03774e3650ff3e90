"""Facts and a template to one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.audit import words
from routing.audit.advice import advices
from routing.audit.claims import Comparison
from routing.audit.facts import EntryFacts, Facts, RunFacts
from routing.audit.figures import reference_size, series_figures
from routing.audit.grid_figures import grid_figures, peak_figure
from routing.audit.peaks import untested_eps
from routing.audit.verdict import furthest, judge, limits
from routing.audit.words import count, dash, exact, gigabytes, listed, number_of, percent, ratio, signed, size
from routing.core.observed import BatchWorst

NUM_SHOWN_ABOVE = 50


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


def page(template: str, facts: Facts) -> str:
    """`template` filled; every value is escaped, and a name that the template misspells is an error."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters = (ratio, exact, count, size, dash, listed, number_of, percent, signed, gigabytes, share)
    environment.filters.update({one.__name__: one for one in filters})
    above, chosen = furthest(facts.comparisons, NUM_SHOWN_ABOVE), reference_size(facts.runs)
    drawn = () if chosen is None else (*series_figures(facts, chosen), *grid_figures(facts, chosen))
    return environment.from_string(template).render(
        facts=facts,
        verdict=judge(facts),
        limits=limits(facts),
        advices=advices(facts),
        figures={one.name: one for one in drawn},
        peak_figure=peak_figure(facts.peaks),
        untested=untested_eps([one.entry.ep for one in facts.entries], facts.peaks),
        queries={one.name: one.text for one in facts.queries},
        has_held_out=any(one.entry.evidence.held_out for one in facts.entries),
        grid_eps=sorted({one.entry.ep for one in facts.entries if one.entry.layer == "all"}),
        grid_sizes=sorted({one.entry.batch_tokens for one in facts.entries if one.entry.layer == "all"}, reverse=True),
        grid={(one.entry.ep, one.entry.batch_tokens): one for one in facts.entries if one.entry.layer == "all"},
        above=tuple(
            AboveRow(comparison=one, worst=one.above[place].worst, num_layers=one.above[place].num_layers) for one, place in above
        ),
        num_above=sum(len(one.above) for one in facts.comparisons),
        layer_table=layer_table(facts.runs),
        binding=binding,
    )


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


def share(value: float) -> str:
    """A share of batches in percent, three digits after the point: what a calibration resolves."""
    return f"{100 * value:.3f}%"


def binding(one: EntryFacts) -> str:
    """What made the allowance as large as it is, in words."""
    return words.binding(one.entry.evidence.binds)
