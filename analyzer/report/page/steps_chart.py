"""Draw the memory of a program after each of its steps."""

from __future__ import annotations

from typing import Final

import numpy as np

from analyzer.model.choice import Category
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.subject import ProgramFigures
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows
from analyzer.model.units import format_bytes
from analyzer.report.render.charts import ChartLine, LineChart, draw_lines
from analyzer.report.render.sections import Drawing

_FEWEST: Final = 3  # readings in a chart
_HEIGHT: Final = 170  # units


def steps_charts(program: ProgramFigures | None) -> list[Drawing]:
    """Return charts of the device's allocator and of the process, if there are enough readings."""
    if program is None:
        return []
    device = [(one.step, one.in_use_bytes) for one in program.readings]
    host = [(one.step, one.host_bytes) for one in program.readings if one.host_bytes is not None]
    charts = []
    for title, trend, points in (
        ("In use in TensorFlow's allocator", program.device.trend, device),
        ("Resident memory of the process", program.host.trend, host),
    ):
        if len(points) < _FEWEST:
            continue
        sizes = [size_bytes for _, size_bytes in points]
        low, high, last = map(format_bytes, (min(sizes), max(sizes), sizes[-1]))
        chart = LineChart(
            caption=f"{title}: {low} to {high}, at the end {last} (trend: {trend})",
            lines=(ChartLine("after each step", "requested", points),),
            first_x=points[0][0],
            shaded_to_x=program.warmup or None,
            x_text="{:,}".format,
            height=_HEIGHT,
        )
        charts.append(draw_lines(chart))
    return charts


WIDTH: Final = 600
HEIGHT: Final = 120
_MOST_POINTS: Final = 150


def inline_areas(report: ReportFile, recording: Recording) -> tuple[tuple[str, str], ...]:
    """Return each category with its area as points of an SVG polygon, the lowest first.

    Each point of the chart is the instant with the most live bytes among those that it stands for.
    """
    sums = category_sums(main_allocator_rows(recording), "requested_bytes", len(recording.events))
    step = next((one for one in report.steps if one.index == report.peak.step), None)
    if step is not None and step.last_instant > step.first_instant:
        sums = sums[:, step.first_instant : step.last_instant + 2]
    total = sums.sum(axis=0)
    count = min(len(total), _MOST_POINTS)
    if count < 2 or not total.any():
        return ()
    edges = np.linspace(0, len(total), count + 1).astype(int)
    chosen = [a + int(total[a:b].argmax()) for a, b in zip(edges, edges[1:], strict=False)]
    heights = HEIGHT * (1 - sums[:, chosen].cumsum(axis=0) / total.max())
    across = np.linspace(0, WIDTH, count)
    below = np.full(count, float(HEIGHT))
    areas = []
    for category, above in zip(Category, heights, strict=True):
        if (above < below - 1e-9).any():
            xs, ys = (*across, *across[::-1]), (*above, *below[::-1])
            points = " ".join(f"{x:.0f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
            areas.append((category.value, points))
        below = above
    return tuple(areas)
