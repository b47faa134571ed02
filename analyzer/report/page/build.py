"""Build the report page: one HTML file with its style, its script and its data.

Text of a trace reaches the page in two ways only, and both keep it text: through the template, which
escapes it, and as compressed data, which the script shows by ``textContent``.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
from msgspec.structs import replace

from analyzer.cards import all_gpus, memory_beside_pool, memory_limit
from analyzer.explain.judgement import Question
from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import LimitOf
from analyzer.model.contract.report.report_file import DiffFile, ReportFile
from analyzer.model.contract.report.subject import ProgramFigures
from analyzer.model.ranges import BoundedBytes
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import category_sums, main_allocator_rows
from analyzer.model.units import format_bytes
from analyzer.report import report_sections
from analyzer.report.actions import change_items, observation_items, repeat_command, suggest_next
from analyzer.report.diff_sections import diff_document
from analyzer.report.page.payload import pack, payload
from analyzer.report.render.charts import ChartLine, LineChart, draw_lines, draw_shares
from analyzer.report.render.page_shell import asset, fill_page, templates_of, writable
from analyzer.report.render.sections import Cell, CellValue, Drawing, Section, Table, TableColumn
from analyzer.report.summary import (
    CATEGORY_LABELS,
    LABELS,
    OUTCOME_TONES,
    error_line,
    step_words,
    summarize,
    versions_line,
)

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
    """Return each category with the points of its area, lowest first; a point is a local peak."""
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


def judge_cards(report: ReportFile) -> list[dict[str, str]]:
    """Return id, name, headline, tone and check of each card, by memory; empty without a need.

    The pool's part of the need stays, the memory beside the pool is that of each card. The workspaces of
    another card's kernels are unknown here; an estimate with ``--gpu`` includes them.
    """
    need = None if report.verdict is None else report.verdict.need
    if need is None or report.error is not None:
        return []
    incomplete = ""
    if report.integrity is not None and report.integrity.is_damaged:
        incomplete = "the trace is damaged"
    elif report.uncertainty is not None and report.uncertainty.unsized:
        incomplete = "some tensors have no size"
    rows = []
    for gpu in sorted(all_gpus(), key=lambda gpu: (gpu.nominal_bytes, gpu.id)):
        beside = BoundedBytes.exactly(memory_beside_pool(gpu))
        question = Question(
            limit_of=LimitOf.CARD, limit=memory_limit(gpu), beside_pool=beside, runs_at_limit=True
        )
        outcome, headline = question.answer(gpu.name, replace(need, beside_pool=beside), incomplete)
        row = {"id": gpu.id, "name": gpu.name, "headline": headline, "tone": OUTCOME_TONES[outcome]}
        rows.append({**row, "check": repeat_command(report, "estimate", card=gpu.id)})
    return rows


_PAGE: Final = "analyzer.report.page"

SCRIPTS: Final = tuple(asset(_PAGE, "assets/scripts.txt").split())
"""Files of the page's script, in the order in which they are joined."""

STATIC_ROWS: Final = 25  # of the tables that are HTML, for printing and readers without script

_STEPS: Final = 40  # rows of the table of steps
_UNMODELLED: Final = 20  # rows of the table of op types without a model
_ALL_HOSTS: Final = 10_000  # rows


def render(report: ReportFile, recording: Recording, *, comparison: DiffFile | None = None) -> str:
    """Return the report page as one HTML file; ``comparison`` is the difference to an earlier step."""
    header, columns = payload(report, recording, comparison)
    summary, hosts = summarize(report), report.hosts
    shares = [(f"fill-{share.category}", share.ratio) for share in summary.shares]
    static = list(diff_document(comparison).sections[:2]) if comparison is not None else []
    if report.tensors_at_peak:
        static.append(report_sections.tensors_section(report, STATIC_ROWS))
    if any(row.layer for row in report.layers):
        static.append(report_sections.layers_section(report, STATIC_ROWS))
    return fill_page(
        _PAGE,
        "assets/template.html",
        script=_script(),
        subtitle=step_words(report),
        footer=versions_line(report.versions),
        next_command=suggest_next(report),
        document=report,
        summary=summary,
        changes=change_items(report),
        observations=observation_items(report),
        error_line=error_line("" if report.error is None else report.error.message),
        what_if=tuple(report_sections.what_if_lines(report)),
        categories=CATEGORY_LABELS,
        comparison=comparison,
        hosts_lead=() if hosts is None else tuple(report_sections.hosts_lead(hosts)),
        hosts=None if hosts is None else report_sections.hosts_section(hosts, _ALL_HOSTS),
        others=tuple(_other_sections(report)),
        static=static,
        stack=draw_shares(shares, "Categories at the peak, listed below"),
        steps_charts=steps_charts(report.program),
        packed=pack({**header, "cards": judge_cards(report)}, columns),
    )


def render_inline(
    report: ReportFile, recording: Recording | None = None, *, comparison: DiffFile | None = None
) -> str:
    """Return a summary for a notebook, without script or style; a recording adds the timeline."""
    template = templates_of(_PAGE).get_template("assets/inline.html")
    text = template.render(
        document=report,
        comparison=comparison,
        summary=summarize(report),
        changes=change_items(report),
        title=report.target.name or "unnamed target",
        areas=() if recording is None else inline_areas(report, recording),
    )
    return writable(text)


def _other_sections(report: ReportFile) -> Iterator[Section]:
    if report.steps:
        yield report_sections.steps_section(report, _STEPS)
    rows: list[tuple[CellValue, ...]] = []
    for path, label in LABELS["size"].items():
        part, _, name = path.partition(".")
        size_bytes = getattr(getattr(report, part), name, None)
        if size_bytes is not None:
            rows.append((label, Cell(size_bytes, path=path)))
    if report.fragmentation is not None and report.fragmentation.risk:
        rows.append(("risk of fragmentation", report.fragmentation.risk))
    sizes = Table((TableColumn("number"), TableColumn("size", "bytes")), tuple(rows))
    yield Section("Allocator", (sizes,))
    if report.unmodelled:
        unmodelled = tuple(
            (row.op_type, row.count, Cell(row.bytes, path=f"unmodelled.{place}.bytes"))
            for place, row in enumerate(report.unmodelled[:_UNMODELLED])
        )
        numbers = (TableColumn("ops", "number"), TableColumn("output", "bytes"))
        table = Table((TableColumn("op type"), *numbers), unmodelled)
        yield Section("Ops with unknown scratch memory", (table,))


@cache
def _script() -> str:
    parts = "\n".join(asset(_PAGE, name) for name in SCRIPTS)
    return f"(() => {{\n'use strict';\n{parts}\n}})();\n"
