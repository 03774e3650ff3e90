"""What every chart is drawn with: altair's words, vl-convert's own Vega, nothing fetched.

Colours are CSS variables of the page, so that one drawing serves light, dark and paper.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from markupsafe import escape

NUM_COLOURS = 8
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
GLYPHS = ("\u25cf", "\u25a0", "\u25b2", "\u25c6", "\u271a", "\u25bc")
_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
_AXIS = "imbalance, \u00d7 even share"
# What XML 1.0 cannot hold (section 2.2, Char). vl-convert ends the process on one, where a name may bring it.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_EVEN = 1.0  # where every axis of imbalances begins: none is below the even share


def series_colour(place: int) -> str:
    """The colour of the run at `place`."""
    return f"var(--series-{place % NUM_COLOURS + 1})"


def top_of(values: Sequence[float]) -> float:
    """Where an axis ends: a little above the largest value."""
    return _EVEN + max(0.1, (max(values, default=_EVEN) - _EVEN) * 1.12)


def accessible(drawing: str, *, name: str, title: str, description: str) -> str:
    """`drawing` as an element of an HTML page that scales and that a screen reader reads as one picture.

    Namespaces go: an HTML parser needs none, and the page then holds no address at all.
    """
    opening = re.match(r"<svg\b[^>]*>", drawing)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    if opening is None or box is None:
        raise ValueError(f"no drawing came back: {drawing[:80]!r}")
    width, height = box.groups()
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{drawing[opening.end() :]}'
    )


def inline(values: list[dict[str, Any]]) -> Any:
    """A chart of these rows."""
    import altair as alt

    return alt.Chart(alt.InlineData(values=values))


def upward(top: float) -> Any:
    """Imbalance on the vertical axis, from even to `top`."""
    import altair as alt

    scale = alt.Scale(domain=[_EVEN, top], nice=False)
    return alt.Y("imbalance:Q", title=_AXIS, scale=scale, axis=alt.Axis(tickCount=5, grid=True))


def along(top: float) -> Any:
    """Imbalance on the horizontal axis, from even to `top`."""
    import altair as alt

    scale = alt.Scale(domain=[_EVEN, top], nice=False)
    return alt.X("imbalance:Q", title=_AXIS, scale=scale, axis=alt.Axis(tickCount=5))


def by_run(names: Sequence[str]) -> Any:
    """A colour for each run; the page has the legend."""
    import altair as alt

    colours = [series_colour(place) for place in range(len(names))]
    return alt.Color("name:N", scale=alt.Scale(domain=list(names), range=colours), legend=None)


def by_mark(names: Sequence[str]) -> Any:
    """A mark for each run, for readers who don't see its colour."""
    import altair as alt

    marks = [MARKS[place % len(MARKS)] for place in range(len(names))]
    return alt.Shape("name:N", scale=alt.Scale(domain=list(names), range=marks), legend=None)


def allowance_line(allowance: Decimal | None, top: float, *, is_upright: bool = False) -> list[Any]:
    """A dashed line at the allowance; nothing without one."""
    if allowance is None:
        return []
    rule = inline([{"imbalance": float(allowance)}]).mark_rule(color="var(--allowance)", strokeDash=[5, 3], strokeWidth=1.5)
    return [rule.encode(x=along(top)) if is_upright else rule.encode(y=upward(top))]


def svg(chart: Any, *, width: int = 250, height: int = 190) -> str:
    """The drawing as SVG text, `width` by `height` without axes."""
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
    spec = _writable(drawn.to_dict(validate=False))
    drawing: str = vl_convert.vegalite_to_svg(spec, vl_version=version, allowed_base_urls=[])
    return drawing


def _writable(value: Any) -> Any:
    """`value` with every character that no drawing can hold as its escape, `\\x1b`."""
    if isinstance(value, dict):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_writable(item) for item in value]
    return _NO_XML.sub(lambda one: one[0].encode("unicode_escape").decode(), value) if isinstance(value, str) else value
