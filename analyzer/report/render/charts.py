"""Draw line charts and stacked bars as inline SVG, in the colours of the shared style."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from markupsafe import Markup, escape

from analyzer.model.units import format_bytes
from analyzer.report.untrusted import unbroken

WIDTH: Final = 760  # units of a chart
_HEIGHT: Final = 170  # units
_MOST_RULES: Final = 3  # with a size
_LEFT: Final = 90  # units for the scale of bytes
_RIGHT: Final = 36  # units, half a label
_TOP: Final = 12  # units
_BOTTOM: Final = 34  # units for the labels of the x axis
_HEADROOM: Final = 1.05

Points = Sequence[tuple[int, int]]  # pairs of x and bytes
Place = Callable[[float], float]  # from a value to its place in the drawing, in units


def draw_line(caption: str, meaning: str, points: Points) -> Markup:
    """Draw bytes against a whole number such as the step; ``meaning`` is of a point."""
    first_x = points[0][0]
    last_x = max(x for x, _ in points)
    highest = max(size_bytes for _, size_bytes in points)

    top = max(highest, 1) * _HEADROOM
    floor = _HEIGHT - _BOTTOM
    breadth = WIDTH - _LEFT - _RIGHT

    def along(x: float) -> float:
        share = (x - first_x) / max(last_x - first_x, 1)
        inside = min(max(share, 0.0), 1.0)

        return round(_LEFT + breadth * inside, 1)

    def up(size_bytes: float) -> float:
        return round(floor - (floor - _TOP) * size_bytes / top, 1)

    parts = list(_draw_sizes(up, int(top)))

    for x in _round_numbers(first_x, last_x):
        parts.append(_label(along(x), _HEIGHT - 16, "middle", f"{x:,}"))

    places = " ".join(f"{along(x)},{up(size)}" for x, size in points)
    parts.append(f'<polyline class="line-requested" points="{places}"/>')

    drawing = draw("line-chart", (WIDTH, _HEIGHT), caption, "\n".join(parts))

    return frame(caption, drawing, [("line-requested", meaning)])


def _draw_sizes(up: Place, top_bytes: int) -> Iterator[str]:
    """Yield rules with their sizes, powers of two apart."""
    stride_bits = (2 * top_bytes // _MOST_RULES).bit_length() - 1
    stride = 1 << max(stride_bits, 0)

    for size_bytes in range(0, top_bytes + 1, stride):
        height = up(size_bytes)
        yield _rule("grid", _LEFT, WIDTH - _RIGHT, height, height)
        yield _label(_LEFT - 6, height + 4, "end", format_bytes(size_bytes))


def _round_numbers(first: int, last: int) -> range:
    """Return up to seven numbers, a one, two or five with zeros apart."""
    span = last - first
    power = 10 ** max(len(str(span)) - 2, 0)
    strides = (k * power for k in (1, 2, 5, 10, 20, 50))
    stride = next(stride for stride in strides if 6 * stride >= span)
    start = -(-first // stride) * stride  # rounded up

    return range(start, last + 1, stride)


def draw_shares(shares: Iterable[tuple[str, float]], caption: str) -> Markup:
    """Draw ratios that add up to 1 as one stacked bar; ``shares`` has a CSS class for each."""
    start = 0.0
    parts = []

    for look, ratio in shares:
        x = 1000 * start
        width = 1000 * ratio
        parts.append(
            f'<rect class="{escape(look)}" x="{x:.2f}" width="{width:.2f}" height="24"/>'
        )
        start += ratio

    return draw("stack", (1000, 24), caption, "".join(parts), fills=True)


def frame(
    caption: str,
    drawing: Markup,
    legend: Iterable[tuple[str, str]] = (),
    note: str = "",
) -> Markup:
    """Return a drawing with its caption; ``legend`` has CSS class and meaning of each colour."""
    swatch = (
        '<span class="key"><svg class="swatch" width="12" height="12" aria-hidden="true">'
        '<rect width="12" height="12" class="{}"/></svg> {}</span> '
    )

    keys = Markup("").join(Markup(swatch).format(*one) for one in legend)

    return Markup(
        '<figure class="drawing"><figcaption>{} <small>{}</small></figcaption>{}'
        '<p class="legend">{}</p><p class="pointed" aria-live="polite"></p></figure>'
    ).format(unbroken(caption), unbroken(note), drawing, keys)


def _rule(look: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{look}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def draw(
    look: str,
    size: tuple[int, int],
    caption: str,
    content: str,
    *,
    fills: bool = False,
) -> Markup:
    """Return an SVG; one that ``fills`` its place may be stretched."""
    more = ' preserveAspectRatio="none"' if fills else ""
    return Markup(
        f'<svg class="{look}" viewBox="0 0 {size[0]} {size[1]}"{more} role="img" '
        f'aria-label="{escape(caption)}">{content}</svg>'
    )
