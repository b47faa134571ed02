"""The report and a recording as one HTML file.

The file holds everything: style, script, data. Text of the trace reaches the page in two ways only,
both of which keep it text: through the template, which escapes, and as compressed data, which the
script shows by ``textContent``. A Content-Security-Policy names the page's own two scripts by their
hash and forbids every other, every request and every form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, TypeVar

from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.diff_file import DiffFile
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.recording.records import Recording
from analyzer.model.units import format_bytes
from analyzer.report.page.columns import pack
from analyzer.report.page.payload import payload, requested_at
from analyzer.report.page.steps_chart import steps_charts
from analyzer.report.page.verdict_words import (
    CATEGORY_LABELS,
    error_line,
    first_screen,
    what_if_words,
)
from analyzer.report.render.page_shell import asset, fill_page, templates_of, writable
from analyzer.report.report_words import (
    front_findings,
    highest_words,
    island_words,
    remedy_words,
    saving_words,
    step_words,
    versions_line,
)

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
    "tables/column_widths.js",
    "tables/virtual_table.js",
    "tables/report_tables.js",
    "charts/lifetimes_chart.js",
    "charts/layer_blocks.js",
    "charts/layer_icicle.js",
    "charts/allocator_map.js",
    "charts/tensor_neighbours.js",
    "tables/difference_view.js",
    "tables/finding_cards.js",
    "shell/keys.js",
    "tables/tensor_detail.js",
    "shell/controls.js",
    "shell/start.js",
)
"""Files of the page's script, in the order in which they are joined."""

OTHER_SIZES: Final = (
    ("resident.requested_bytes", "resident before the step, requested"),
    ("resident.allocated_bytes", "resident before the step, allocated"),
    ("peak_ever.requested_bytes", "highest ever, requested"),
    ("peak_ever.allocated_bytes", "highest ever, allocated"),
    ("peak_ever.pool_bytes", "highest ever, pool"),
    ("fragmentation.internal_bytes", "waste inside chunks at the peak"),
    ("fragmentation.external_bytes", "free but unusable at the peak"),
    ("fragmentation.largest_free_bytes", "largest free chunk at the peak"),
    ("device.memory_limit_bytes", "limit of the allocator"),
    ("failure.free_bytes", "free under the limit at the failure"),
    ("uncertainty.low_bytes", "likely peak, low end"),
    ("uncertainty.high_bytes", "likely peak, high end"),
)
"""Numbers of the report that are listed at the end of the page, where the report has them."""

_Row = TypeVar("_Row", bound=ReportRecord)

STATIC_ROWS: Final = 25
"""Rows of each table that are in the page as HTML, for printing and for readers without script."""


def render(
    report: ReportFile,
    recording: Recording,
    *,
    comparison: DiffFile | None = None,
) -> str:
    """Return the report as the text of one HTML file.

    Args:
        report: What is said of the step; every number shown is in it or in the recording's columns.
        recording: The buffers that the timeline and the views are drawn from.
        comparison: What differs from another step, where the page is to show two; ``recording`` is
            then the second of them.
    """
    header, columns = payload(report, recording, comparison)
    return fill_page(
        _PAGE,
        "assets/template.html",
        script=_script(),
        subtitle=step_words(report),
        badge=first_screen(report).basis,
        footer=versions_line(report.versions),
        document=report,
        screen=first_screen(report),
        warnings=[*report.warnings, *_disagreements(report, recording)],
        top_findings=front_findings(report),
        error_line=error_line("" if report.error is None else report.error.message),
        what_if=what_if_words(report),
        categories=CATEGORY_LABELS,
        comparison=comparison,
        title=_title(report),
        other_sizes=[item for item in OTHER_SIZES if _value_at(report, item[0]) is not None],
        value_at=lambda path: _value_at(report, path),
        highest=highest_words(report),
        islands=island_words(report),
        static_tensors=_largest(report.tensors_at_peak, "requested_bytes"),
        static_ops=_largest(report.ops, "alive_at_peak_bytes"),
        static_layers=_largest(report.layers, "total_bytes"),
        static_retained=_largest(report.retained, "requested_bytes"),
        packed=pack(header, columns),
        saving=saving_words,
        remedy_words=remedy_words,
        seconds=_seconds,
        steps_charts=steps_charts(report.program),
    )


def render_inline(report: ReportFile, *, comparison: DiffFile | None = None) -> str:
    """Return a summary that a notebook shows in place: no script, no style outside itself."""
    text = (
        templates_of(_PAGE)
        .get_template("assets/inline.html")
        .render(
            document=report,
            comparison=comparison,
            screen=first_screen(report),
            top_findings=front_findings(report),
            title=_title(report),
            saving=saving_words,
        )
    )
    return writable(text)


def _title(report: ReportFile) -> str:
    return report.target.name or "unnamed target"


def _value_at(report: ReportFile, path: str) -> int | None:
    """Return the number at a path such as ``peak.requested_bytes``; None where there is none."""
    value: object = report
    for key in path.split("."):
        value = getattr(value, key, None)
    return value if isinstance(value, int) else None


def _largest(rows: Sequence[_Row], key: str) -> list[_Row]:
    return sorted(rows, key=lambda row: -int(getattr(row, key)))[:STATIC_ROWS]


def _disagreements(report: ReportFile, recording: Recording) -> list[str]:
    """Say where the timeline, drawn from the buffers, is not what the report states."""
    drawn = requested_at(recording, report.peak.instant)
    stated = report.categories_at_peak.by_category()
    return [
        f"The timeline shows {format_bytes(drawn[category])} of {label.lower()} at the peak, "
        f"the report {format_bytes(stated[category])}. Please report this."
        for category, label in CATEGORY_LABELS.items()
        if drawn[category] != stated[category]
    ]


@cache
def _script() -> str:
    return (
        "(() => {\n'use strict';\n"
        + "\n".join(asset(_PAGE, name) for name in SCRIPTS)
        + "\n})();\n"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
