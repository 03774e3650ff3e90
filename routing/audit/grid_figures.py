"""Figures of cells, distributions and bars: where the worst is, how far batches spread, what is alive at a measured peak."""

from collections.abc import Sequence

from routing.audit.charts import distribution_chart
from routing.audit.drawing import accessible, top_of
from routing.audit.facts import Facts, RunFacts, ShareRow
from routing.audit.figures import Figure, LegendItem, Panel, allowance_item, allowances_at, panel, run_legend
from routing.audit.grids import Bar, Cell, bar_chart, cell_chart, term_colour
from routing.audit.peaks import PeakFacts
from routing.audit.words import exact, gigabytes, percent, ratio, size

_SHADE = LegendItem(glyph="\u2588", colour="var(--heat)", text="the stronger the shade, the further above the even share (1.00)")
_FRAME = LegendItem(glyph="\u25a1", colour="var(--allowance)", text="the worst of all")


def grid_figures(facts: Facts, chosen: int) -> tuple[Figure, ...]:
    """Layers by EP size, layers by rank at the worst batch, and the distribution of batch worsts."""
    eps = sorted({row.ep for run in facts.runs for row in run.worsts})
    return (_heat(facts, eps, chosen), _ranks(facts, eps, chosen), _distribution(facts, eps))


def _heat(facts: Facts, eps: Sequence[int], chosen: int) -> Figure:
    cells = {
        run.name: [
            Cell(column=row.ep, layer=row.layer, value=row.worst_imbalance) for row in run.layers if row.batch_tokens == chosen
        ]
        for run in facts.runs
    }
    top = top_of([one.value for found in cells.values() for one in found])
    panels = []
    for place, (name, found) in enumerate(cells.items()):
        if not found:
            continue
        said = []
        for ep in eps:
            most = max((one for one in found if one.column == ep), key=lambda one: (one.value, -one.layer), default=None)
            if most is not None:
                said.append(f"EP {ep}: layer {most.layer} is the worst, {ratio(most.value)}.")
        title = f"Worst imbalance by layer and EP size, {name}, batches of {size(chosen)} tokens"
        drawn = cell_chart(found, column="EP size", top=top)
        panels.append(
            Panel(title=name, svg=accessible(drawn, name=f"heat-{place}", title=title, description=" ".join(said)))
        )
    return Figure(
        name="heat",
        title=f"Layers by EP size: each layer's worst, batches of {size(chosen)} tokens",
        caption="More ranks hold fewer experts each, so that imbalance grows with EP. A number measured at one EP size says "
        "nothing of another one, and another layer may be the worst there.",
        legend=(_SHADE,),
        panels=tuple(panels),
        query="sql/imbalance_by_layer.sql",
    )


def _ranks(facts: Facts, eps: Sequence[int], chosen: int) -> Figure:
    found = {ep: worst_shares(facts.runs, ep, chosen) for ep in eps}
    top = top_of([row.share or 1.0 for _, rows in found.values() for row in rows])
    panels = []
    for ep, (run, rows) in found.items():
        present = [row for row in rows if row.share is not None]
        if not present:
            continue
        worst = max(present, key=lambda row: (row.share or 0, -row.layer, -row.rank))
        cells = [Cell(column=row.rank, layer=row.layer, value=row.share or 0, is_worst=row is worst) for row in present]
        title = f"Rows of each rank over the even share at EP {ep}, batches of {size(chosen)} tokens"
        said = f"{run}, batch {worst.batch}: rank {worst.rank} of layer {worst.layer} gets {ratio(worst.share)} even shares."
        drawn = cell_chart(cells, column="rank", top=top)
        drawn = accessible(drawn, name=f"ranks-ep{ep}", title=title, description=said)
        panels.append(Panel(title=f"EP {ep}: {run}, batch {worst.batch}", svg=drawn))
    return Figure(
        name="ranks",
        title=f"Layers by rank in the worst batch, batches of {size(chosen)} tokens",
        caption="The batch with the largest imbalance of all runs at that EP size. A rank below 1.00 waits with memory to spare; "
        "the framed one is what the allowance must hold.",
        legend=(_SHADE, _FRAME),
        panels=tuple(panels),
        query="sql/worst_rank_loads.sql",
    )


def worst_shares(runs: Sequence[RunFacts], ep: int, batch_tokens: int) -> tuple[str, tuple[ShareRow, ...]]:
    """(the run with the largest imbalance, the rank shares of its worst batch); no rows where no run has a full batch."""
    best: tuple[float, str, tuple[ShareRow, ...]] = (0.0, "", ())
    for run in runs:
        rows = tuple(row for row in run.shares if (row.ep, row.batch_tokens) == (ep, batch_tokens))
        most = max((row.share for row in rows if row.share is not None), default=0.0)
        if most > best[0]:
            best = (most, run.name, rows)
    return best[1], best[2]


def _distribution(facts: Facts, eps: Sequence[int]) -> Figure:
    names = [run.name for run in facts.runs]
    sizes = sorted({one.batch_tokens for run in facts.runs for one in run.batches}, reverse=True)
    allowed = {ep: allowances_at(facts, ep) for ep in eps}
    sizes = [one for one in sizes if any(one in found for found in allowed.values())] or sizes
    panels = []
    for batch_tokens in sizes:
        worsts = {ep: _worsts_of(facts.runs, ep, batch_tokens) for ep in eps}
        values = [value for found in worsts.values() for one in found.values() for value in one]
        top = top_of([*values, *(float(found[batch_tokens]) for found in allowed.values() if batch_tokens in found)])
        for ep in eps:
            if not worsts[ep]:
                continue
            allowance = allowed[ep].get(batch_tokens)
            drawn = distribution_chart(worsts[ep], names=names, allowance=allowance, top=top)
            said = [
                f"{name}: {len(one):,} batches from {ratio(min(one))} to {ratio(max(one))}." for name, one in worsts[ep].items()
            ]
            said.append("No allowance is in the table." if allowance is None else f"The allowance is {exact(allowance)}.")
            title = f"Distribution of batch worsts at EP {ep}, batches of {size(batch_tokens)} tokens"
            one = panel(f"spread-{batch_tokens}", ep, title, drawn, said)
            panels.append(Panel(title=f"EP {ep}, {size(batch_tokens)} tokens", svg=one.svg))
    return Figure(
        name="spread",
        title="How batches spread, and where the allowance stands",
        caption="Each step is a batch's worst layer; a line at 80% means that four of five batches stay at or below that "
        "imbalance. The mark is the worst batch. What lies between it and the dashed line is the slack.",
        legend=(*run_legend(names), allowance_item(any(allowed.values()), "dashed line")),
        panels=tuple(panels),
        query="sql/worst_distribution.sql",
    )


def _worsts_of(runs: Sequence[RunFacts], ep: int, batch_tokens: int) -> dict[str, tuple[float, ...]]:
    return {
        run.name: one.imbalances
        for run in runs
        for one in run.batches
        if (one.ep, one.batch_tokens) == (ep, batch_tokens) and one.imbalances
    }


def peak_figure(peaks: Sequence[PeakFacts]) -> Figure | None:
    """What is alive at each rank's own peak, a panel a wave; None without a measured peak."""
    if not peaks:
        return None
    terms = list(dict.fromkeys(name for one in peaks for rank in one.ranks for name, _ in rank.terms))
    panels = []
    for place, one in enumerate(peaks):
        bars = [
            Bar(bar=f"rank {rank.rank}", term=name, num_bytes=num_bytes) for rank in one.ranks for name, num_bytes in rank.terms
        ]
        drawn = bar_chart(bars, terms=terms, peak_bytes=one.peak.measured_bytes)
        said = [
            f"Rank {rank.rank}: {gigabytes(rank.num_bytes, 4)}, most of it {_largest(rank.terms)}." for rank in one.ranks
        ]
        said.append(f"The measured peak is {gigabytes(one.peak.measured_bytes, 4)}, the estimate {percent(one.over_fraction)}.")
        title = f"Bytes alive at the estimated peak of {one.peak.wave}, by rank"
        drawn = accessible(drawn, name=f"alive-{place}", title=title, description=" ".join(said))
        panels.append(Panel(title=f"{one.peak.wave}, {one.peak.state}", svg=drawn))
    legend = [
        LegendItem(glyph="\u25a0", colour=term_colour(place), text=name.replace("_", " ")) for place, name in enumerate(terms)
    ]
    line = LegendItem(glyph="\u2504\u2504", colour="var(--allowance)", text="the measured peak (dashed line)")
    return Figure(
        name="alive",
        title="What is alive at the estimated peak, by rank",
        caption="By the floor, each rank at its own largest instant; the longest bar is the estimate. The HybridEP buffer is "
        "outside PyTorch's allocator, so that the measured peak doesn't hold it.",
        legend=(*legend, line),
        panels=tuple(panels),
        query="",
    )


def _largest(terms: Sequence[tuple[str, int]]) -> str:
    name, num_bytes = max(terms, key=lambda one: one[1])
    return f"{name.replace('_', ' ')} {gigabytes(num_bytes, 4)}"
