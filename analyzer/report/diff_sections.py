"""Build the document of a difference between two steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analyzer.model.contract import report_file
from analyzer.report.render.sections import (
    COLUMNS,
    Cell,
    Document,
    Paragraph,
    Row,
    Section,
    Table,
    TableColumn,
    Tone,
)
from analyzer.report.report_sections import LEAST_PARTS, ROWS, report_document

_ROWS = 4  # of categories and layers

_CHANGE_TONES: dict[str, Tone] = {
    "came": "bad",
    "grew": "bad",
    "went": "good",
    "shrank": "good",
    "same": "muted",
}


def diff_document(report: report_file.DiffFile) -> Document:
    """Return a difference of two steps as the terminal shows it."""
    peak = [(row.number, row) for row in report.peak]
    categories = sorted(report.categories, key=_distance, reverse=True)
    largest = [(row.category, row) for row in _largest(categories, _ROWS)]

    return Document(
        "",
        report.headline,
        notices=report.notes,
        lead=(Paragraph(report.number), Paragraph(report.action, "strong")),
        sections=(
            Section("", (_both(peak),)),
            Section("", (_both(largest),)),
            _changes("Layers", report.layers, _ROWS),
            replace(_changes("Ops", report.ops, ROWS), is_folded=True),
        ),
        next_command=report.next_command,
    )


def _distance(row: report_file.BytesOfBoth) -> int:
    return abs(row.delta_bytes or 0)


def _largest(rows: Sequence[Any], most: int) -> list[Any]:
    """Return the first rows, those with the largest differences, from 1 % of the first one on."""
    least = max(map(_distance, rows), default=0) // LEAST_PARTS
    return [row for row in rows[:most] if _distance(row) >= least]


def diff_summary(
    report: report_file.DiffFile,
    newer: report_file.ReportFile,
) -> Document:
    """Return the summary of a difference for a pull request, with the verdict of the second step."""
    step = report_document(newer)
    document = diff_document(report)
    return replace(
        document,
        notices=(*step.notices, *report.notes),
        lead=(*document.lead, Paragraph(step.headline, "strong"), *step.lead),
    )


def _both(rows: Sequence[tuple[str, report_file.BytesOfBoth]]) -> Table:
    cells = tuple((name.replace("_", " "), *_cells(row)) for name, row in rows)
    return Table((TableColumn(""), *COLUMNS["differences"]), cells)


def _changes(title: str, rows: Sequence[report_file.LayerOfBoth], most: int) -> Section:
    changed = [row for row in rows if row.change != "same"]
    if not rows:
        return Section("", ())

    if not changed:
        words = f"{title}: all {len(rows)} are the same."
        return Section("", (Paragraph(words, "muted"),))

    cells: list[Row] = []
    shown = _largest(changed, most)
    others = changed[len(shown) :]

    for row in shown:
        change = Cell(row.change, _CHANGE_TONES[row.change])
        cells.append((row.name or "(none)", *_cells(row), change))

    if others:
        rest = sum(row.delta_bytes or 0 for row in others)
        more = Cell(f"{len(others)} more", "muted")
        cells.append((more, rest, None, None, None, None))

    name = f"{len(changed)} of {len(rows)} {title.lower()} differ"
    first = TableColumn(name, "path", least=24)
    last = TableColumn("change", least=6, rank=1)
    table = Table((first, *COLUMNS["differences"], last), tuple(cells))

    return Section("", (table,))


def _cells(row: report_file.BytesOfBoth) -> Row:
    a = row.a_bytes
    b = row.b_bytes
    delta = row.delta_bytes
    sizes = ("-" if a is None else a, "-" if b is None else b)

    if delta is None:
        return ("-", "", *sizes)

    tone: Tone = "bad" if delta > 0 else "good" if delta else "muted"
    share = _share(delta / a) if a else ""

    return (Cell(delta, tone), Cell(share, tone), *sizes)


def _share(ratio: float) -> str:
    """Return a change as a share; empty if it is none, or so large that a share says nothing."""
    return f"{ratio:+.1%}" if 0.0005 <= abs(ratio) < 100 else ""
