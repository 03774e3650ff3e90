"""Charts of cells and bars: layers by EP size, layers by rank, and bytes by rank."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from routing.audit.drawing import inline, series_colour, svg
from routing.core.units import BYTES_PER_GB

_CELL_HEIGHT, _CELL_WIDTH, _MOST_WIDTH = 18, 34, 560  # pixels; a cell of full width holds its digits
_LABELLED_LAYERS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """`value` is a ratio to the even share; `column` an EP size or a rank, `is_worst` the one that is framed."""

    column: int
    layer: int
    value: float
    is_worst: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A piece of one bar: bytes of one term on one rank."""

    bar: str
    term: str
    num_bytes: int


def cell_chart(cells: Sequence[Cell], *, column: str, top: float) -> str:
    """A row a layer, a column a rank or EP size; the stronger the shade, the further above even."""
    import altair as alt

    layers, columns = sorted({one.layer for one in cells}), sorted({one.column for one in cells})
    x = alt.X("column:O", title=column, sort=columns, axis=alt.Axis(labelAngle=0, ticks=False, domain=False, orient="top"))
    every = max(1, len(layers) // 20)
    shown = f"datum.value % {every} == 0 ? datum.label : ''"
    y = alt.Y("layer:O", title="layer", sort=layers, axis=alt.Axis(ticks=False, domain=False, labelExpr=shown))
    rows = [asdict(one) | {"label": f"{one.value:.2f}"} for one in cells]
    shade = alt.Opacity("value:Q", scale=alt.Scale(domain=[1, top], range=[0.04, 0.5], clamp=True), legend=None)
    base = inline(rows).encode(x=x, y=y)
    drawn: list[Any] = [base.mark_rect(color="var(--heat)").encode(opacity=shade)]
    worst = [one for one in rows if one["is_worst"]]
    if worst:
        framed = inline(worst).mark_rect(fill=None, stroke="var(--allowance)", strokeWidth=2, fillOpacity=0)
        drawn.append(framed.encode(x=x, y=y))
    if len(layers) <= _LABELLED_LAYERS and _CELL_WIDTH * len(columns) <= _MOST_WIDTH:
        drawn.append(base.mark_text(fontSize=12, color="currentColor").encode(text="label:N"))
    return svg(alt.layer(*drawn), width=max(90, min(_MOST_WIDTH, _CELL_WIDTH * len(columns))), height=_CELL_HEIGHT * len(layers))


def bar_chart(bars: Sequence[Bar], *, terms: Sequence[str], peak_bytes: int) -> str:
    """A bar a rank, its terms one after the other in GB; the dashed line is the measured peak."""
    import altair as alt

    rows = [
        {"bar": one.bar, "term": one.term, "gb": one.num_bytes / BYTES_PER_GB, "place": terms.index(one.term)} for one in bars
    ]
    names = list(dict.fromkeys(one.bar for one in bars))
    most = max(sum(one.num_bytes for one in bars if one.bar == name) for name in names)
    scale = alt.Scale(domain=[0, max(most, peak_bytes) / BYTES_PER_GB * 1.05], nice=False)
    x = alt.X("gb:Q", title="GB above the baseline (1 GB = 1e9 bytes)", stack="zero", scale=scale, axis=alt.Axis(tickCount=6))
    y = alt.Y("bar:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False))
    colours = alt.Scale(domain=list(terms), range=[term_colour(place) for place in range(len(terms))])
    stacked = inline(rows).mark_bar(stroke="var(--page)", strokeWidth=1).encode(
        x=x, y=y, order="place:Q", color=alt.Color("term:N", scale=colours, legend=None)
    )
    rule = inline([{"gb": peak_bytes / BYTES_PER_GB}]).mark_rule(color="var(--allowance)", strokeDash=[5, 3], strokeWidth=2)
    rule = rule.encode(x=alt.X("gb:Q", scale=scale))
    return svg(alt.layer(stacked, rule), width=560, height=34 * len(names) + 10)


def term_colour(place: int) -> str:
    """The colour of the term at `place`; lighter where the colours begin again."""
    colour = series_colour(place)
    return colour if place < 8 else f"color-mix(in srgb, {colour} 55%, var(--page))"
