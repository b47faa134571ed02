"""The answer of ``analyze fit`` as one HTML file: the report page's style, a chart, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import jinja2
from markupsafe import Markup

from analyzer.fitting.report.fit_words import basis_of, sentences_of, step_words
from analyzer.fitting.scaling.fit_answer import FitAnswer
from analyzer.model.units import format_bytes
from analyzer.report.page.sealed_page import asset, policy_of, templates_in, writable
from analyzer.report.words import spread_words

_FIT: Final = "analyzer.fitting.report"

_WIDTH: Final = 760  # pixels of the curve
_HEIGHT: Final = 300  # pixels of the curve
_LEFT: Final = 90  # pixels for the scale
_RIGHT: Final = 36  # pixels, half a batch size's
_TOP: Final = 12  # pixels
_BOTTOM: Final = 34  # pixels for the batch sizes


@dataclass(frozen=True, slots=True)
class _Chart:
    """Places in the chart, in pixels from its upper left corner.

    Attributes:
        requested, allocated: The curves, as points of a polyline.
        limit: Height of the limit; None where it is above the chart.
        largest: Place of the largest size along the axis; None where it is beyond it.
        sizes: Marks along the axis: place and size.
        heights: Marks upwards: place and bytes.
    """

    requested: str
    allocated: str
    limit: float | None
    largest: float | None
    sizes: tuple[tuple[float, str], ...]
    heights: tuple[tuple[float, str], ...]


def render_fit_page(answer: FitAnswer) -> str:
    """Return the answer as the text of one HTML file."""
    style = _style()
    text = _template().render(
        answer=answer,
        chart=_chart(answer) if answer.curve else None,
        step=step_words(answer),
        basis=basis_of(answer),
        sentences=list(sentences_of(answer)),
        style=Markup(style),
        policy=policy_of(style),
        spread=spread_words,
    )
    return writable(text)


def _chart(answer: FitAnswer) -> _Chart:
    """Return the curves and marks; a limit far above the curves is left out: it would flatten them."""
    points = answer.curve
    last = max(point.size for point in points)
    top = max(max(point.allocated_bytes for point in points), answer.limit_bytes) * 1.05
    if answer.limit_bytes > 4 * max(point.allocated_bytes for point in points):
        top = max(point.allocated_bytes for point in points) * 1.05

    def along(size: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * size / max(last, 1), 1)

    def up(size_bytes: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * size_bytes / top, 1)

    def line(values: Sequence[tuple[int, int]]) -> str:
        return " ".join(f"{along(size)},{up(size_bytes)}" for size, size_bytes in values)

    return _Chart(
        requested=line([(point.size, point.requested_bytes) for point in points]),
        allocated=line([(point.size, point.allocated_bytes) for point in points]),
        limit=up(answer.limit_bytes) if answer.limit_bytes <= top else None,
        largest=along(answer.largest) if 0 < answer.largest <= last else None,
        sizes=tuple(
            (along(size), answer.label(size) if size else "0") for size in round_sizes(last)
        ),
        heights=tuple((up(size), format_bytes(size)) for size in round_heights(int(top))),
    )


def round_sizes(most: int) -> list[int]:
    """Return up to seven round sizes from 0 on, a one, two or five with zeros apart.

    Args:
        most: The largest size that is drawn.
    """
    power = 10 ** max(len(str(most)) - 2, 0)
    stride = next(k * power for k in (1, 2, 5, 10, 20, 50) if 6 * k * power >= most)
    return list(range(0, most + 1, stride))


def round_heights(most_bytes: int) -> list[int]:
    """Return up to eight sizes from 0 on, a power of two of bytes apart.

    Args:
        most_bytes: The top of the chart.
    """
    stride = 1 << max((most_bytes // 4).bit_length() - 1, 0)
    return list(range(0, most_bytes + 1, stride))


def _style() -> str:
    return asset("analyzer.report.render", "assets/shared.css") + asset(_FIT, "fit_page.css")


@cache
def _template() -> jinja2.Template:
    environment = templates_in(_FIT)
    environment.undefined = jinja2.StrictUndefined
    return environment.get_template("fit_page.html")
