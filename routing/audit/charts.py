"""Charts with a line or a row of marks for each run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal

from routing.audit.drawing import MARKS, allowance_line, along, by_mark, by_run, inline, svg, upward
from routing.core.units import format_size

STATISTICS = ("worst", "mean", "pooled")
NUM_STEPS = 120  # of a distribution: more points than that are drawn at every nth, the largest 20 all


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A point of a run's: `at` is a layer, a batch size in tokens or one of STATISTICS."""

    name: str
    at: int | str
    imbalance: float


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
    base = inline([asdict(mark) for mark in marks]).encode(x=x, y=upward(top))
    line = base.mark_line(strokeWidth=1.5).encode(color=by_run(names), detail="name:N")
    points = base.mark_point(filled=True, size=34, opacity=1).encode(color=by_run(names), shape=by_mark(names))
    return svg(alt.layer(*allowance_line(allowance, top), line, points))


def size_chart(
    marks: Sequence[Mark],
    *,
    names: Sequence[str],
    allowances: Mapping[int, Decimal],
    uniform: Mapping[int, float],
    top: float,
) -> str:
    """Imbalance against batch size, a line a run. A bar is a size's allowance, the dotted line a uniform router's worst."""
    import altair as alt

    sizes = sorted({int(mark.at) for mark in marks} | set(allowances))
    labels = " : ".join(f"datum.value == {one} ? '{format_size(one)}'" for one in sizes)
    x = alt.X(
        "at:Q",
        title="tokens per batch, log scale",
        scale=alt.Scale(type="log", domain=[sizes[0] / 1.8, sizes[-1] * 1.8], nice=False),
        axis=alt.Axis(values=sizes, labelExpr=f"{labels} : ''", grid=False),
    )
    base = inline([asdict(mark) for mark in marks]).encode(x=x, y=upward(top))
    line = base.mark_line(strokeWidth=1.5).encode(color=by_run(names), detail="name:N")
    points = base.mark_point(filled=True, size=44, opacity=1).encode(color=by_run(names), shape=by_mark(names))
    bars = [{"at": one, "imbalance": float(value)} for one, value in allowances.items()]
    allowed = inline(bars).mark_point(shape="stroke", size=700, strokeWidth=2.5, opacity=1, color="var(--allowance)")
    drawn = [{"at": one, "imbalance": value} for one, value in sorted(uniform.items())]
    floor = inline(drawn).mark_line(strokeWidth=1.5, strokeDash=[2, 3], color="var(--muted)", point=False)
    layers = [allowed.encode(x=x, y=upward(top)), *([floor.encode(x=x, y=upward(top))] if drawn else []), line, points]
    return svg(alt.layer(*layers))


def statistics_chart(marks: Sequence[Mark], *, names: Sequence[str], allowance: Decimal | None, top: float) -> str:
    """Worst, mean over layers and pooled of each run on one line."""
    import altair as alt

    axis = alt.Axis(labelLimit=130, labelPadding=8, ticks=False, domain=False, grid=True)
    y = alt.Y("name:N", title=None, sort=list(names), axis=axis)
    x = along(top)
    colours = alt.Scale(domain=list(STATISTICS), range=[f"var(--{one})" for one in STATISTICS])
    shapes = alt.Scale(domain=list(STATISTICS), range=list(MARKS[: len(STATISTICS)]))
    base = inline([asdict(mark) for mark in marks])
    span = base.mark_line(strokeWidth=1.5, color="currentColor", opacity=0.45).encode(y=y, x=x, detail="name:N")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("at:N", scale=colours, legend=None),
        shape=alt.Shape("at:N", scale=shapes, legend=None),
    )
    allowed = allowance_line(allowance, top, is_upright=True)
    return svg(alt.layer(*allowed, span, points), height=34 * len(names) + 16, width=190)


def distribution_chart(
    worsts: Mapping[str, Sequence[float]], *, names: Sequence[str], allowance: Decimal | None, top: float
) -> str:
    """The share of batches whose worst layer stays at or below an imbalance, a step line a run; the allowance dashed."""
    import altair as alt

    rows = [
        {"name": name, "imbalance": value, "share": share}
        for name, found in worsts.items()
        for value, share in _steps(sorted(found))
    ]
    y = alt.Y("share:Q", title="share of batches", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5, format="%"))
    base = inline(rows).encode(x=along(top), y=y)
    line = base.mark_line(interpolate="step-after", strokeWidth=1.5).encode(color=by_run(names), detail="name:N", order="share:Q")
    last = [{"name": name, "imbalance": max(found), "share": 1.0} for name, found in worsts.items() if found]
    ends = inline(last).mark_point(filled=True, size=44, opacity=1)
    ends = ends.encode(x=along(top), y=y, color=by_run(names), shape=by_mark(names))
    return svg(alt.layer(*allowance_line(allowance, top, is_upright=True), line, ends), height=150)


def _steps(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """(imbalance, share of values at or below it), at most about NUM_STEPS of them."""
    num = len(ordered)
    stride = max(1, num // NUM_STEPS)
    chosen = sorted({*range(0, num, stride), *range(max(0, num - 20), num)})
    return [(ordered[0], 0.0), *((ordered[place], (place + 1) / num) for place in chosen)] if ordered else []
