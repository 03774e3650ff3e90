"""Charts as SVG text: altair draws them, vl-convert's own Vega renders them, nothing is fetched.

Colours are CSS variables of the page, so that one drawing serves light, dark and paper.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from markupsafe import escape

from routing.core.units import format_size

NUM_COLOURS = 8
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
GLYPHS = ("\u25cf", "\u25a0", "\u25b2", "\u25c6", "\u271a", "\u25bc")
STATISTICS = ("worst", "mean", "pooled")
_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
_EVEN = 1.0  # where every y axis begins: no imbalance is below the even share


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A point of a run's: `at` is a layer, a batch size in tokens or one of STATISTICS."""

    name: str
    at: int | str
    imbalance: float


def series_colour(place: int) -> str:
    """The colour of the run at `place`."""
    return f"var(--series-{place % NUM_COLOURS + 1})"


def top_of(values: Sequence[float]) -> float:
    """Where an axis ends: a little above the largest value."""
    return _EVEN + max(0.1, (max(values, default=_EVEN) - _EVEN) * 1.12)


def layer_chart(marks: Sequence[Mark], *, names: Sequence[str], allowance: Decimal | None, top: float) -> str:
    """Imbalance by layer, a line a run. A dashed line is the allowance."""
    import altair as alt

    layers = [int(mark.at) for mark in marks]
    x = alt.X(
        "at:Q",
        title="layer",
        scale=alt.Scale(domain=[min(layers) - 0.5, max(layers) + 0.5], nice=False),
        axis=alt.Axis(tickMinStep=1, format="d", grid=False),
    )
    base = _chart([asdict(mark) for mark in marks]).encode(x=x, y=_y(top))
    line = base.mark_line(strokeWidth=1.5).encode(color=_by_run(names), detail="name:N")
    points = base.mark_point(filled=True, size=34, opacity=1).encode(color=_by_run(names), shape=_shape(names))
    return _svg(alt.layer(*_allowance_line(allowance, top), line, points))


def size_chart(marks: Sequence[Mark], *, names: Sequence[str], allowances: Mapping[int, Decimal], top: float) -> str:
    """Imbalance against batch size, a line a run. A bar is a size's allowance."""
    import altair as alt

    sizes = sorted({int(mark.at) for mark in marks} | set(allowances))
    labels = " : ".join(f"datum.value == {one} ? '{format_size(one)}'" for one in sizes)
    x = alt.X(
        "at:Q",
        title="tokens per batch, log scale",
        scale=alt.Scale(type="log", domain=[sizes[0] / 1.8, sizes[-1] * 1.8], nice=False),
        axis=alt.Axis(values=sizes, labelExpr=f"{labels} : ''", grid=False),
    )
    base = _chart([asdict(mark) for mark in marks]).encode(x=x, y=_y(top))
    line = base.mark_line(strokeWidth=1.5).encode(color=_by_run(names), detail="name:N")
    points = base.mark_point(filled=True, size=44, opacity=1).encode(color=_by_run(names), shape=_shape(names))
    bars = [{"at": one, "imbalance": float(value)} for one, value in allowances.items()]
    allowed = _chart(bars).mark_point(shape="stroke", size=700, strokeWidth=2.5, opacity=1, color="var(--allowance)")
    return _svg(alt.layer(allowed.encode(x=x, y=_y(top)), line, points))


def statistics_chart(marks: Sequence[Mark], *, names: Sequence[str], allowance: Decimal | None, top: float) -> str:
    """Worst, mean over layers and pooled of each run on one line."""
    import altair as alt

    y = alt.Y("name:N", title=None, sort=list(names), axis=alt.Axis(labelLimit=105, ticks=False, domain=False, grid=True))
    x = _along(top)
    colours = alt.Scale(domain=list(STATISTICS), range=[f"var(--{one})" for one in STATISTICS])
    shapes = alt.Scale(domain=list(STATISTICS), range=list(MARKS[: len(STATISTICS)]))
    base = _chart([asdict(mark) for mark in marks])
    span = base.mark_line(strokeWidth=1.5, color="currentColor", opacity=0.45).encode(y=y, x=x, detail="name:N")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("at:N", scale=colours, legend=None),
        shape=alt.Shape("at:N", scale=shapes, legend=None),
    )
    allowed = _allowance_line(allowance, top, is_upright=True)
    return _svg(alt.layer(*allowed, span, points), height=34 * len(names) + 16, width=190)


def accessible(svg: str, *, name: str, title: str, description: str) -> str:
    """`svg` as an element of an HTML page that scales and that a screen reader reads as one picture.

    Namespaces go: an HTML parser needs none, and the page then holds no address at all.
    """
    opening = re.match(r"<svg\b[^>]*>", svg)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if opening is None or box is None:
        raise ValueError(f"no drawing came back: {svg[:80]!r}")
    width, height = box.groups()
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{svg[opening.end() :]}'
    )


def _chart(values: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.InlineData(values=values))


def _y(top: float) -> Any:
    import altair as alt

    scale = alt.Scale(domain=[_EVEN, top], nice=False)
    return alt.Y("imbalance:Q", title="imbalance (1 = even)", scale=scale, axis=alt.Axis(tickCount=5, grid=True))


def _along(top: float) -> Any:
    import altair as alt

    scale = alt.Scale(domain=[_EVEN, top], nice=False)
    return alt.X("imbalance:Q", title="imbalance (1 = even)", scale=scale, axis=alt.Axis(tickCount=5))


def _by_run(names: Sequence[str]) -> Any:
    import altair as alt

    colours = [series_colour(place) for place in range(len(names))]
    return alt.Color("name:N", scale=alt.Scale(domain=list(names), range=colours), legend=None)


def _shape(names: Sequence[str]) -> Any:
    import altair as alt

    marks = [MARKS[place % len(MARKS)] for place in range(len(names))]
    return alt.Shape("name:N", scale=alt.Scale(domain=list(names), range=marks), legend=None)


def _allowance_line(allowance: Decimal | None, top: float, *, is_upright: bool = False) -> list[Any]:
    if allowance is None:
        return []
    rule = _chart([{"imbalance": float(allowance)}]).mark_rule(color="var(--allowance)", strokeDash=[5, 3], strokeWidth=1.5)
    return [rule.encode(x=_along(top)) if is_upright else rule.encode(y=_y(top))]


def _svg(chart: Any, *, width: int = 250, height: int = 190) -> str:
    import altair as alt
    import vl_convert

    drawn = (
        chart.properties(width=width, height=height, padding={"left": 14, "right": 4, "top": 4, "bottom": 4})
        .configure(background="transparent", font=_FONT, aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="currentColor",
            titleColor="currentColor",
            domainColor="currentColor",
            tickColor="currentColor",
            gridColor="currentColor",
            domainOpacity=0.5,
            tickOpacity=0.5,
            gridOpacity=0.14,
            labelFlush=False,
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
        )
    )
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    svg: str = vl_convert.vegalite_to_svg(drawn.to_dict(), vl_version=version, allowed_base_urls=[])
    return svg
