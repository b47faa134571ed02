"""Draw line charts and stacked bars as inline SVG, in the colours of the shared style."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from markupsafe import Markup, escape

from analyzer.model.units import format_bytes
from analyzer.report.render.sections import Drawing

WIDTH: Final = 760  # units of a chart
_LEFT: Final = 90  # units for the scale of bytes
_RIGHT: Final = 36  # units, half a label
_TOP: Final = 12  # units
_BOTTOM: Final = 34  # units for the labels of the x axis
_HEADROOM: Final = 1.05
_LONGEST_OVERSHOOT: Final = 4
"""A limit this many times above the highest point is left out: it would flatten the lines."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: its name, its CSS class, and its points as pairs of x and bytes."""

    name: str
    look: str
    points: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Bytes against a whole number such as the batch size or the step.

    ``first_x`` is the left end of the x axis, ``limit_bytes`` a horizontal line, ``marks`` are vertical
    lines with their look and name. The chart is shaded up to ``shaded_to_x``, such as the warm-up.
    """

    caption: str
    lines: Sequence[ChartLine]
    first_x: int = 0
    limit_bytes: int | None = None
    marks: Sequence[tuple[int, str, str]] = ()
    shaded_to_x: int | None = None
    x_text: Callable[[int], str] = str
    height: int = 300


Place = Callable[[float], float]  # from a value to its place in the drawing, in units


def draw_lines(chart: LineChart) -> Drawing:
    """Draw a line chart with scales, marks and a legend."""
    points = [point for line in chart.lines for point in line.points]
    marked = [x for x, _, _ in chart.marks]
    last_x = max([*(x for x, _ in points), *marked])
    highest = max(size_bytes for _, size_bytes in points)
    limit = chart.limit_bytes
    if limit is not None and limit > _LONGEST_OVERSHOOT * highest:
        limit = None

    top, floor = max(highest, limit or 0, 1) * _HEADROOM, chart.height - _BOTTOM

    def along(x: float) -> float:
        share = (x - chart.first_x) / max(last_x - chart.first_x, 1)
        share = min(max(share, 0.0), 1.0)
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * share, 1)

    def up(size_bytes: float) -> float:
        return round(floor - (floor - _TOP) * size_bytes / top, 1)

    parts = [
        *_draw_shade(chart, along),
        *_draw_sizes(chart, up, int(top)),
        *_draw_xs(chart, along, last_x),
    ]

    legend = [(f"line-{line.look}", line.name) for line in chart.lines]
    if limit is not None:
        parts.append(_rule("limit", _LEFT, WIDTH - _RIGHT, up(limit), up(limit)))
        legend.append(("line-limit", "limit"))

    for x, look, name in chart.marks:
        if chart.first_x <= x:
            parts.append(_rule(look, along(x), along(x), _TOP, floor))
            legend.append((f"line-{look}", name))

    for line in chart.lines:
        places = " ".join(f"{along(x)},{up(size)}" for x, size in line.points)
        parts.append(f'<polyline class="line-{escape(line.look)}" points="{places}"/>')

    svg = _svg("line-chart", (WIDTH, chart.height), chart.caption, "\n".join(parts))
    return Drawing(chart.caption, svg, legend=tuple(legend))


def _draw_shade(chart: LineChart, along: Place) -> Iterator[str]:
    if chart.shaded_to_x is not None and chart.shaded_to_x > chart.first_x:
        width = round(along(chart.shaded_to_x) - _LEFT, 1)
        height = chart.height - _BOTTOM - _TOP
        yield f'<rect class="shade" x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}"/>'


def _draw_sizes(chart: LineChart, up: Place, top_bytes: int) -> Iterator[str]:
    """Yield rules with their sizes, powers of two apart."""
    most_rules = 8 if chart.height > 200 else 3
    stride = 1 << max((2 * top_bytes // most_rules).bit_length() - 1, 0)
    for size_bytes in range(0, top_bytes + 1, stride):
        height = up(size_bytes)
        yield _rule("grid", _LEFT, WIDTH - _RIGHT, height, height)
        yield _label(_LEFT - 6, height + 4, "end", format_bytes(size_bytes))


def _draw_xs(chart: LineChart, along: Place, last: int) -> Iterator[str]:
    """Yield up to seven round labels of the x axis, a one, two or five with zeros apart."""
    first = chart.first_x
    power = 10 ** max(len(str(last - first)) - 2, 0)
    stride = next(
        k * power for k in (1, 2, 5, 10, 20, 50) if 6 * k * power >= last - first
    )
    for x in range(-(-first // stride) * stride, last + 1, stride):
        yield _label(along(x), chart.height - 16, "middle", chart.x_text(x))


def draw_shares(shares: Sequence[tuple[str, float]], caption: str) -> Markup:
    """Draw ratios that add up to 1 as one stacked bar; ``shares`` has a CSS class for each."""
    starts = accumulate((ratio for _, ratio in shares), initial=0.0)
    parts = "".join(
        f'<rect class="{escape(look)}" x="{1000 * start:.2f}" width="{1000 * ratio:.2f}" height="24"/>'
        for (look, ratio), start in zip(shares, starts, strict=False)
    )
    return _svg("stack", (1000, 24), caption, parts, ' preserveAspectRatio="none"')


def _rule(look: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{look}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(
    look: str, size: tuple[int, int], caption: str, content: str, more: str = ""
) -> Markup:
    return Markup(
        f'<svg class="{look}" viewBox="0 0 {size[0]} {size[1]}"{more} role="img" '
        f'aria-label="{escape(caption)}">{content}</svg>'
    )
