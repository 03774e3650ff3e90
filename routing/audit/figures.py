"""Which charts the page shows, one panel an EP size, each with the words that a screen reader says instead."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from routing.audit.charts import STATISTICS, Mark, layer_chart, size_chart, statistics_chart
from routing.audit.drawing import GLYPHS, MARKS, accessible, series_colour, top_of
from routing.audit.facts import Facts, RunFacts, WorstRow
from routing.audit.words import exact, quoted, ratio, size

_NAMED = (
    "worst: the busiest rank of the worst layer, what must fit in memory",
    "mean over layers: what a tool that averages its layers shows",
    "pooled: what a tool that adds up the layers before it compares ranks shows",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendItem:
    """A mark, the CSS colour it has, what it stands for; `stroke` is the CSS width and style of a line instead of a glyph."""

    colour: str
    text: str
    glyph: str = ""
    stroke: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One drawing under its heading."""

    title: str
    svg: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Panels side by side, what they show, and the file of the query that they are drawn from, empty where none is."""

    name: str
    title: str
    caption: str
    legend: tuple[LegendItem, ...]
    panels: tuple[Panel, ...]
    query: str


_UNIFORM_ITEM = LegendItem(stroke="2px dotted", colour="var(--muted)", text="a uniform router (computed)")


def reference_size(runs: Sequence[RunFacts]) -> int | None:
    """The largest batch size with two full batches in every run, else in some run, else with one; None without a full batch."""
    batches: dict[int, list[int]] = {}
    for run in runs:
        for row in {row.batch_tokens: row for row in run.worsts}.values():
            batches.setdefault(row.batch_tokens, []).append(row.num_batches)
    in_all = [one for one, found in batches.items() if min(found) >= 2]
    in_some = [one for one, found in batches.items() if max(found) >= 2]
    at_all = [one for one, found in batches.items() if max(found) >= 1]
    return max(in_all or in_some or at_all, default=None)


def series_figures(facts: Facts, chosen: int) -> tuple[Figure, ...]:
    """Imbalance by layer, by batch size, and worst beside mean and pooled; `chosen` is the batch size of the first and last."""
    eps = sorted({row.ep for run in facts.runs for row in run.worsts})
    return (_by_layer(facts, eps, chosen), _by_size(facts, eps), _by_statistic(facts, eps, chosen))


def _by_layer(facts: Facts, eps: Sequence[int], chosen: int) -> Figure:
    names = [run.name for run in facts.runs]
    marks = {
        ep: [
            Mark(name=run.name, at=row.layer, imbalance=row.worst_imbalance)
            for run in facts.runs
            for row in run.layers
            if (row.ep, row.batch_tokens) == (ep, chosen)
        ]
        for ep in eps
    }
    allowed = {ep: allowances_at(facts, ep).get(chosen) for ep in eps}
    top = _top(marks, _present(allowed.values()))
    panels = []
    for ep in eps:
        svg = layer_chart(marks[ep], names=names, allowance=allowed[ep], top=top)
        said = []
        for name in names:
            mine = sorted((mark.imbalance, mark.at) for mark in marks[ep] if mark.name == name)
            if mine:
                low, high = mine[0], mine[-1]
                said.append(f"{quoted(name)}: from {ratio(low[0])} in layer {low[1]} to {ratio(high[0])} in layer {high[1]}.")
        title = f"Imbalance by layer at EP {ep}, batches of {size(chosen)} tokens"
        panels.append(panel("layers", ep, title, svg, [*said, _said(allowed[ep])]))
    return Figure(
        name="layers",
        title=f"Imbalance by layer, batches of {size(chosen)} tokens",
        caption="Each point is a layer's largest imbalance over the full batches. A training run must have memory for the layer "
        "that stands out, not for the average one.",
        legend=(*run_legend(names), allowance_item(any(allowed.values()), "dashed line")),
        panels=tuple(panels),
        query="sql/imbalance_by_layer.sql",
    )


def _by_size(facts: Facts, eps: Sequence[int]) -> Figure:
    names = [run.name for run in facts.runs]
    full = {row.batch_tokens for run in facts.runs for row in run.worsts if row.num_batches}
    marks = {
        ep: [
            Mark(name=run.name, at=row.batch_tokens, imbalance=row.worst_imbalance)
            for run in facts.runs
            for row in run.worsts
            if row.ep == ep and row.worst_imbalance is not None
        ]
        for ep in eps
    }
    allowed = {ep: {one: value for one, value in allowances_at(facts, ep).items() if one in full} for ep in eps}
    uniform = {ep: _uniform(facts, ep) for ep in eps}
    top = _top(marks, [float(value) for found in allowed.values() for value in found.values()])
    panels = []
    for ep in eps:
        svg = size_chart(marks[ep], names=names, allowances=allowed[ep], uniform=uniform[ep], top=top)
        said = [f"{quoted(mark.name)}, {size(int(mark.at))} tokens: {ratio(mark.imbalance)}." for mark in marks[ep]]
        said += [f"A uniform router, {size(one)} tokens: {ratio(value)}." for one, value in uniform[ep].items()]
        said += [f"Allowance at {size(one)}: {exact(value)}." for one, value in allowed[ep].items()]
        panels.append(panel("sizes", ep, f"Worst imbalance by batch size at EP {ep}", svg, said))
    return Figure(
        name="sizes",
        title="Worst imbalance by batch size",
        caption="Each point is the worst layer of the worst batch. As a rule smaller batches are less even, so that an allowance "
        "belongs to its batch size; larger ones are fewer here, so that their worst is seen less well. The dotted line is what a "
        "router without preferences would show by drawing alone, over as many layers and batches (the median): well above it is "
        "more than drawing explains.",
        legend=(*run_legend(names), _UNIFORM_ITEM, allowance_item(any(allowed.values()), "bar")),
        panels=tuple(panels),
        query="sql/imbalance.sql",
    )


def _by_statistic(facts: Facts, eps: Sequence[int], chosen: int) -> Figure:
    marks = {
        ep: [
            mark
            for run in facts.runs
            for row in run.worsts
            if (row.ep, row.batch_tokens) == (ep, chosen)
            for mark in _statistics(run.name, row)
        ]
        for ep in eps
    }
    allowed = {ep: allowances_at(facts, ep).get(chosen) for ep in eps}
    top = _top(marks, _present(allowed.values()))
    panels = []
    for ep in eps:
        names = list(dict.fromkeys(mark.name for mark in marks[ep]))
        svg = statistics_chart(marks[ep], names=names, allowance=allowed[ep], top=top)
        said = [f"{quoted(mark.name)}, {mark.at}: {ratio(mark.imbalance)}." for mark in marks[ep]]
        title = f"Worst, mean and pooled imbalance at EP {ep}, batches of {size(chosen)} tokens"
        panels.append(panel("statistics", ep, title, svg, [*said, _said(allowed[ep])]))
    legend = [LegendItem(glyph=GLYPHS[at], colour=f"var(--{one})", text=_NAMED[at]) for at, one in enumerate(STATISTICS)]
    return Figure(
        name="statistics",
        title=f"Worst layer beside mean and pooled, batches of {size(chosen)} tokens",
        caption="All three are of the same batch. A tool that averages its layers would show the mean; one that adds up the "
        "layers before it compares ranks would show the pooled figure. Memory has to hold for the worst.",
        legend=(*legend, allowance_item(any(allowed.values()), "dashed line")),
        panels=tuple(panels),
        query="sql/imbalance.sql",
    )


def _statistics(name: str, row: WorstRow) -> Iterator[Mark]:
    for statistic, value in zip(STATISTICS, (row.worst_imbalance, row.mean_over_layers, row.pooled_over_layers), strict=True):
        if value is not None:
            yield Mark(name=name, at=statistic, imbalance=value)


def _top(marks: Mapping[int, Sequence[Mark]], allowances: Sequence[float]) -> float:
    """One axis for all panels, so that EP sizes compare."""
    return top_of([*(mark.imbalance for found in marks.values() for mark in found), *allowances])


def panel(figure: str, ep: int, title: str, svg: str, said: Sequence[str]) -> Panel:
    """One EP size's drawing with its words."""
    return Panel(title=f"EP {ep}", svg=accessible(svg, name=f"{figure}-ep{ep}", title=title, description=" ".join(said)))


def allowances_at(facts: Facts, ep: int) -> dict[int, Decimal]:
    """By batch size, of the entries that speak for all layers."""
    entries = [one.entry for one in facts.entries if one.entry.ep == ep and one.entry.layer == "all"]
    return {entry.batch_tokens: entry.allowance for entry in entries}


def _uniform(facts: Facts, ep: int) -> dict[int, float]:
    """By batch size, the largest over runs."""
    rows = [(row.batch_tokens, row.uniform) for run in facts.runs for row in run.worsts if row.ep == ep]
    found: dict[int, float] = {}
    for batch_tokens, value in rows:
        if value is not None:
            found[batch_tokens] = max(value, found.get(batch_tokens, 1.0))
    return found


def _present(values: Iterable[Decimal | None]) -> list[float]:
    return [float(value) for value in values if value is not None]


def _said(allowance: Decimal | None) -> str:
    return "No allowance is in the table." if allowance is None else f"The allowance is {exact(allowance)}."


def run_legend(names: Sequence[str]) -> list[LegendItem]:
    """A mark and its colour for each run."""
    return [
        LegendItem(glyph=GLYPHS[place % len(MARKS)], colour=series_colour(place), text=name) for place, name in enumerate(names)
    ]


def allowance_item(is_drawn: bool, shape: str) -> LegendItem:
    """The allowance's mark, or that there is none."""
    text = f"allowance ({shape})" if is_drawn else "no allowance is in the table for this batch size"
    return LegendItem(stroke="2px dashed" if shape == "dashed line" else "3px solid", colour="var(--allowance)", text=text)
