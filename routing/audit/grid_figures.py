"""Figures of cells, distributions and bars: where the worst is, how far batches spread, what is alive at a measured peak."""

from collections.abc import Sequence

from routing.audit.charts import distribution_chart
from routing.audit.drawing import accessible, top_of
from routing.audit.facts import Facts, RunFacts, ShareRow
from routing.audit.figures import Figure, LegendItem, Panel, allowance_item, allowances_at, panel, run_legend
from routing.audit.grids import Bar, Cell, bar_chart, cell_chart, term_colour
from routing.audit.peaks import PeakFacts
from routing.audit.words import count, exact, gigabytes, percent, quoted, ratio, size

_SHADE = LegendItem(glyph="\u2588", colour="var(--heat)", text="the stronger the shade, the further above the even share (1.00)")
_FRAME = LegendItem(glyph="\u25a1", colour="var(--allowance)", text="the worst rank of its panel")


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
        title = f"Worst imbalance by layer and EP size, {quoted(name)}, batches of {size(chosen)} tokens"
        drawn = cell_chart(found, column="EP size", top=top)
        panels.append(
            Panel(title=quoted(name), svg=accessible(drawn, name=f"heat-{place}", title=title, description=" ".join(said)))
        )
    return Figure(
        name="heat",
        title="Layers by EP size",
        caption=f"Each layer's worst over batches of {size(chosen)} tokens. With more ranks, each holds fewer experts, so "
        "imbalance grows with EP. A number measured at one EP size "
        "does not carry over to another, where another layer may be the worst.",
        legend=(_SHADE,),
        panels=tuple(panels),
        query="sql/imbalance_by_layer.sql",
    )


def _ranks(facts: Facts, eps: Sequence[int], chosen: int) -> Figure:
    places = [(ep, chosen) for ep in eps]
    found = [(*place, *worst_shares(facts.runs, *place)) for place in dict.fromkeys([*places, worst_place(facts.runs)])]
    top = top_of([row.share or 1.0 for *_, rows in found for row in rows])
    panels = []
    for ep, batch_tokens, run, rows in found:
        present = [row for row in rows if row.share is not None]
        if not present:
            continue
        worst = max(present, key=lambda row: (row.share or 0, -row.layer, -row.rank))
        cells = [Cell(column=row.rank, layer=row.layer, value=row.share or 0, is_worst=row is worst) for row in present]
        where = f"EP {ep}, {size(batch_tokens)} tokens: {quoted(run)}, batch {count(worst.batch)}"
        said = f"Rank {worst.rank} of layer {worst.layer} gets {ratio(worst.share)} even shares."
        drawn = accessible(
            cell_chart(cells, column="rank", top=top),
            name=f"ranks-ep{ep}-{batch_tokens}",
            title=f"Rows of each rank over the even share, {where}",
            description=said,
        )
        is_worst = (ep, batch_tokens) == worst_place(facts.runs)
        panels.append(Panel(title=f"{where}{', the worst of all' if is_worst else ''}", svg=drawn))
    return Figure(
        name="ranks",
        title="Layers by rank in the worst batches",
        caption=f"Each panel is the batch with the largest imbalance of all runs: of {size(chosen)} tokens at each EP size, and "
        "the worst of all. Layers, batches and ranks count from 0. A rank below 1.00 waits with memory to spare; the framed one "
        "is what the allowance must hold.",
        legend=(_SHADE, _FRAME),
        panels=tuple(panels),
        query="sql/worst_rank_loads.sql",
    )


def worst_place(runs: Sequence[RunFacts]) -> tuple[int, int]:
    """(EP size, batch size) of the largest imbalance of all, ties to the first; there is a full batch."""
    rows = [row for run in runs for row in run.worsts if row.worst_imbalance is not None]
    most = max(rows, key=lambda row: row.worst_imbalance or 0)
    return most.ep, most.batch_tokens


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
                f"{quoted(name)}: {len(one):,} batches from {ratio(min(one))} to {ratio(max(one))}."
                for name, one in worsts[ep].items()
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
    line = LegendItem(stroke="2px dashed", colour="var(--allowance)", text="the measured peak (dashed line)")
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
