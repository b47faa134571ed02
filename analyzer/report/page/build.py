"""Build the report page: one HTML file with its style, its script and its data.

Text of a trace reaches the page in two ways only, and both keep it text: through the template, which
escapes it, and as compressed data, which the script shows by ``textContent``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from analyzer.model.contract.report.report_file import DiffFile, ReportFile
from analyzer.model.recording.records import Recording
from analyzer.report.actions import change_items, observation_items, suggest_next
from analyzer.report.page.columns import pack
from analyzer.report.page.payload import payload
from analyzer.report.page.steps_chart import inline_areas, steps_charts
from analyzer.report.render.charts import draw_shares
from analyzer.report.render.page_shell import asset, fill_page, templates_of, writable
from analyzer.report.render.sections import Cell, CellValue, Section, Table, TableColumn
from analyzer.report.report_sections import (
    hosts_lead,
    hosts_section,
    layers_section,
    steps_section,
    tensors_section,
    what_if_lines,
)
from analyzer.report.summary import summarize
from analyzer.report.words import CATEGORY_LABELS, error_line, step_words, versions_line

_PAGE: Final = "analyzer.report.page"

SCRIPTS: Final = (
    "shell/format.js",
    "shell/decode.js",
    "shell/decoded_recording.js",
    "shell/reader_state.js",
    "shell/page_address.js",
    "shell/dom.js",
    "charts/canvas.js",
    "charts/axis.js",
    "charts/chart_labels.js",
    "charts/timeline_chart.js",
    "tables/virtual_table.js",
    "tables/report_tables.js",
    "charts/lifetimes_chart.js",
    "charts/layer_icicle.js",
    "charts/allocator_map.js",
    "tables/difference_view.js",
    "shell/keys.js",
    "tables/tensor_detail.js",
    "shell/controls.js",
    "shell/start.js",
)
"""Files of the page's script, in the order in which they are joined."""

_OTHER_SIZES: Final = (
    ("resident.allocated_bytes", "resident before the step, allocated"),
    ("peak_ever.allocated_bytes", "highest peak, allocated"),
    ("peak_ever.since_start_bytes", "highest peak since the start of the process, allocated"),
    ("peak_ever.pool_bytes", "largest pool"),
    ("fragmentation.internal_bytes", "waste inside chunks at the peak"),
    ("fragmentation.external_bytes", "free but unusable at the peak"),
    ("fragmentation.largest_free_bytes", "largest free chunk at the peak"),
    ("device.memory_limit_bytes", "limit of the allocator"),
)
"""Place in the report and label of the sizes at the end of the page."""

STATIC_ROWS: Final = 25
"""Rows of the tables that are HTML, for printing and for readers without script."""

_STEPS: Final = 40  # rows of the table of steps
_UNMODELLED: Final = 20  # rows of the table of op types without a model
_ALL_HOSTS: Final = 10_000  # rows


def render(report: ReportFile, recording: Recording, *, comparison: DiffFile | None = None) -> str:
    """Return the report page as one HTML file; ``comparison`` is the difference to an earlier step."""
    header, columns = payload(report, recording, comparison)
    summary, hosts = summarize(report), report.hosts
    shares = [(f"fill-{share.category}", share.ratio) for share in summary.shares]
    static = []
    if report.tensors_at_peak:
        static.append(tensors_section(report, STATIC_ROWS))
    if any(row.layer for row in report.layers):
        static.append(layers_section(report, STATIC_ROWS))
    return fill_page(
        _PAGE,
        "assets/template.html",
        script=_script(),
        title=report.target.name or "unnamed target",
        subtitle=step_words(report),
        badge=summary.basis,
        footer=versions_line(report.versions),
        next_command=suggest_next(report),
        document=report,
        summary=summary,
        changes=change_items(report),
        observations=observation_items(report),
        error_line=error_line("" if report.error is None else report.error.message),
        what_if=tuple(what_if_lines(report)),
        categories=CATEGORY_LABELS,
        comparison=comparison,
        hosts_lead=() if hosts is None else tuple(hosts_lead(hosts)),
        hosts=None if hosts is None else hosts_section(hosts, _ALL_HOSTS),
        others=tuple(_other_sections(report)),
        static=static,
        stack=draw_shares(shares, "Categories at the peak, listed below"),
        steps_charts=steps_charts(report.program),
        packed=pack(header, columns),
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
    """Yield the sections below the charts: steps, allocator sizes, op types without a model."""
    if report.steps:
        yield steps_section(report, _STEPS)
    rows: list[tuple[CellValue, ...]] = []
    for path, label in _OTHER_SIZES:
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
