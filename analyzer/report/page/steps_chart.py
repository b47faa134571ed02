"""What a program held after each of its steps, as the places of a chart on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.report.run_figures import HeldReading, ProgramFigures

WIDTH: Final = 1000
HEIGHT: Final = 100
"""The chart's own units; the page draws them as wide and as high as it likes."""

_HEADROOM: Final = 1.08
_FEWEST: Final = 3
"""Readings from which on there is something to draw."""


@dataclass(frozen=True, slots=True)
class StepsChart:
    """One line over the steps.

    Attributes:
        title: What is drawn.
        points: The places, as SVG's ``polyline`` has them.
        warmup: Width of the steps of the warm-up, in the chart's units.
        first_step, last_step: The steps at its ends.
        least_bytes, most_bytes, last_bytes: Of the readings.
        top_bytes: What its upper edge stands for; the lower one is 0.
        words: What it shows, for readers who do not see it.
    """

    title: str
    points: str
    warmup: float
    first_step: int
    last_step: int
    least_bytes: int
    most_bytes: int
    last_bytes: int
    top_bytes: int
    words: str


def steps_charts(program: ProgramFigures | None) -> list[StepsChart]:
    """Return the charts: the device's allocator, and the process' resident memory where it was read."""
    if program is None:
        return []
    charts = [
        _chart(program, "In use in TensorFlow's allocator after each step", _in_use, "device"),
        _chart(program, "Resident memory of the process after each step", _on_host, "host"),
    ]
    return [chart for chart in charts if chart is not None]


def _in_use(one: HeldReading) -> int | None:
    return one.in_use_bytes


def _on_host(one: HeldReading) -> int | None:
    return one.host_bytes


def _chart(
    program: ProgramFigures, title: str, value: Callable[[HeldReading], int | None], which: str
) -> StepsChart | None:
    """Return one chart; None where there are too few readings.

    Args:
        program: The program.
        title: What is drawn.
        value: What of a reading is drawn; None where it was not read.
        which: Name of the trend that belongs to it.
    """
    rows = [(one.step, size) for one in program.readings if (size := value(one)) is not None]
    if len(rows) < _FEWEST:
        return None
    sizes = [size for _, size in rows]
    first, last = rows[0][0], rows[-1][0]
    top = max(round(max(sizes) * _HEADROOM), 1)
    along = WIDTH / max(last - first, 1)
    trend = getattr(program, which).trend
    return StepsChart(
        title=title,
        points=" ".join(
            f"{(step - first) * along:.1f},{HEIGHT - HEIGHT * size / top:.2f}"
            for step, size in rows
        ),
        warmup=round(min(max(program.warmup - first, 0) * along, WIDTH), 1),
        first_step=first,
        last_step=last,
        least_bytes=min(sizes),
        most_bytes=max(sizes),
        last_bytes=sizes[-1],
        top_bytes=top,
        words=f"{title}, steps {first} to {last}: {trend}.",
    )
