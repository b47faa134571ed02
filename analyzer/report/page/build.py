"""Build the report page: one HTML file with its style, its script and its data.

Text of a trace reaches the page in two ways only, and both keep it text: through the template, which
escapes it, and as compressed data, which the script shows by ``textContent``.
The page also lists the lines of the user's code that own the most bytes at the peak, with their text.
"""

import linecache
import os
from collections import defaultdict
from functools import cache
from pathlib import Path

from analyzer.model.contract.capture_request import TargetKind
from analyzer.model.contract.report_file import DiffFile, ProgramFigures, ReportFile
from analyzer.model.recording.records import Recording
from analyzer.model.units import format_bytes
from analyzer.report import report_sections
from analyzer.report.actions import change_items
from analyzer.report.answer import (
    CATEGORY_LABELS,
    answer_tone,
    basis_of,
    error_line,
    list_details,
    list_reasons,
    list_shares,
    notices_of,
    step_words,
    versions_line,
)
from analyzer.report.diff_sections import diff_document
from analyzer.report.page.payload import pack, payload
from analyzer.report.render.page_shell import asset, fill_page, templates_of, writable
from analyzer.report.render.sections import (
    Section,
    Table,
    TableColumn,
)

_MOST = 5  # lines
_MOST_CHARACTERS = 120  # of a line's text
_MOST_BYTES = 1 << 20  # of a file
_COLUMNS = (
    TableColumn("requested", "bytes"),
    TableColumn("line", "path"),
)


def source_lines_section(report: ReportFile) -> Section | None:
    """Return the lines with the most requested bytes; None if they do not divide the peak.

    A redacted report has no lines.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for tensor in report.tensors_at_peak:
        sizes[tensor.source] += tensor.requested_bytes

    sizes.pop("", None)
    least = report.peak.requested_bytes // report_sections.LEAST_PARTS
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:_MOST]
    rows = tuple(
        (size, f"{line}  {_read_line(line)}".rstrip())
        for line, size in largest
        if size >= least
    )

    if len(rows) < 2:  # the call of ``fit`` owns all
        return None

    return Section(
        "Lines that own the most bytes at the peak",
        (Table(_COLUMNS, rows),),
    )


def _read_line(place: str) -> str:
    """Return the text of ``file.py:line``; empty if the file is not one of this folder's sources.

    A trace of someone else may name any file, so only Python files below this folder are read.
    """
    name, _, number = place.rpartition(":")

    try:
        folder = Path(os.path.realpath(os.getcwd()))
        path = Path(os.path.realpath(name))

        is_own = path.suffix == ".py" and folder in path.parents
        if not is_own or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ""
    except (OSError, ValueError):  # no current folder; a name with U+0000
        return ""

    text = linecache.getline(str(path), int(number) if number.isdecimal() else 0)

    return text.strip()[:_MOST_CHARACTERS]


_PAGE = "analyzer.report.page"

_FEWEST = 3  # readings in a chart

# of the tables that are HTML, for printing and readers without script
STATIC_ROWS = 25

_TENSORS = 5  # groups of equal tensors
_ALL_HOSTS = 10_000  # rows


def render(
    report: ReportFile,
    recording: Recording,
    *,
    comparison: DiffFile | None = None,
) -> str:
    """Return the report page as one HTML file; ``comparison`` is the difference to an earlier step."""
    header, columns = payload(report, recording, comparison)
    error = "" if report.error is None else report.error.message
    hosts = report.hosts
    static: list[Section] = []

    if comparison is not None:
        static += diff_document(comparison).sections[:2]

    static += report_sections.layer_sections(report, STATIC_ROWS)

    return fill_page(
        _PAGE,
        "assets/template.html",
        script=_script(),
        subtitle=", ".join(filter(None, (step_words(report), report.device.name))),
        footer=versions_line(report.versions),
        next_command=""
        if report.target.kind == TargetKind.TRACE
        else report.next_command,
        document=report,
        basis=basis_of(report),
        tone=answer_tone(report),
        answer=report.answer,
        notices=notices_of(report),
        details=list(filter(None, list_details(report))),
        reasons=list(list_reasons(report)),
        shares=list_shares(report),
        changes=change_items(report),
        tensors=report_sections.tensors_section(report, _TENSORS),
        source_lines=source_lines_section(report),
        error_line=error_line(error),
        what_if=tuple(report_sections.what_if_lines(report)),
        categories=CATEGORY_LABELS,
        comparison=comparison,
        hosts=hosts and report_sections.hosts_section(hosts, _ALL_HOSTS),
        static=static,
        steps_chart=steps_chart(report.program),
        packed=pack(header, columns),
    )


def render_inline(report: ReportFile, *, comparison: DiffFile | None = None) -> str:
    """Return a summary for a notebook, without script or style."""
    template = templates_of(_PAGE).get_template("assets/inline.html")

    text = template.render(
        document=report,
        comparison=comparison,
        basis=basis_of(report),
        answer=report.answer,
        notices=notices_of(report),
        shares=list_shares(report),
        changes=change_items(report),
        title=report.target.name or "unnamed target",
    )

    return writable(text)


def steps_chart(program: ProgramFigures | None) -> tuple[str, str] | None:
    """Return the most bytes and the points of a chart of the allocator; None with too few readings.

    A point is a pair of shares of the width and the height, from the upper left corner.
    """
    readings = () if program is None else program.readings
    if len(readings) < _FEWEST:
        return None

    high = max(1, *(one.in_use_bytes for one in readings))
    first, end = readings[0].step, readings[-1].step
    places = (
        f"{(one.step - first) / max(end - first, 1):.4f},{1 - one.in_use_bytes / high:.4f}"
        for one in readings
    )

    return format_bytes(high), " ".join(places)


@cache
def _script() -> str:
    """Return the page's script: its files in the order of ``scripts.txt``."""
    names = asset(_PAGE, "assets/scripts.txt").split()
    parts = "\n".join(asset(_PAGE, name) for name in names)

    return f"(() => {{\n'use strict';\n{parts}\n}})();\n"
