"""Draw the memory of a program after each of its steps."""

from __future__ import annotations

from typing import Final

from analyzer.model.contract.report.run_figures import ProgramFigures
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
    return [
        _chart(program, title, trend, points)
        for title, trend, points in (
            ("In use in TensorFlow's allocator", program.device.trend, device),
            ("Resident memory of the process", program.host.trend, host),
        )
        if len(points) >= _FEWEST
    ]


def _chart(
    program: ProgramFigures, title: str, trend: str, points: list[tuple[int, int]]
) -> Drawing:
    sizes = [size_bytes for _, size_bytes in points]
    low, high, last = map(format_bytes, (min(sizes), max(sizes), sizes[-1]))
    return draw_lines(
        LineChart(
            caption=f"{title}: {low} to {high}, at the end {last} (trend: {trend})",
            lines=(ChartLine("after each step", "requested", points),),
            first_x=points[0][0],
            shaded_to_x=program.warmup or None,
            x_text=lambda step: f"{step:,}",
            height=_HEIGHT,
        )
    )
