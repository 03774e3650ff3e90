"""Facts and a template to one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.audit import words
from routing.audit.claims import Comparison
from routing.audit.facts import EntryFacts, Facts, RunFacts
from routing.audit.figures import figures, reference_size
from routing.audit.verdict import furthest, judge, limits
from routing.audit.words import count, dash, exact, listed, number_of, ratio, size
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
    filters = (ratio, exact, count, size, dash, listed, number_of)
    environment.filters.update({one.__name__: one for one in filters})
    above = furthest(facts.comparisons, NUM_SHOWN_ABOVE)
    return environment.from_string(template).render(
        facts=facts,
        verdict=judge(facts),
        limits=limits(facts),
        figures=figures(facts),
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


def binding(one: EntryFacts) -> str:
    """What made the allowance as large as it is, in words."""
    return words.binding(one.entry.evidence.binds)
