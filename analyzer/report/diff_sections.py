"""Build the document of a difference between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from analyzer.model.contract.report.report_file import (
    BytesOfBoth,
    DiffFile,
    LayerOfBoth,
    ReportFile,
)
from analyzer.report.render.sections import (
    Cell,
    CellValue,
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
    Tone,
)
from analyzer.report.report_sections import ROWS, front_sections
from analyzer.report.summary import summarize

_CHANGE_TONES: Final[dict[str, Tone]] = {
    "came": "bad",
    "grew": "bad",
    "went": "good",
    "shrank": "good",
    "same": "muted",
}


def diff_document(report: DiffFile) -> Document:
    """Return a difference of two steps as the terminal shows it."""
    return Document(
        f"{report.a.label}  →  {report.b.label}",
        report.headline,
        notices=report.notes,
        sections=(
            Section("Peak", (_both(report, [(row.number, row) for row in report.peak]),)),
            Section(
                "At the peak, requested bytes",
                (_both(report, [(row.category, row) for row in report.categories]),),
            ),
            _changes("Layers", report.layers, report),
            _changes("Ops", report.ops, report),
        ),
    )


def diff_summary(report: DiffFile, newer: ReportFile) -> Document:
    """Return the summary of a difference for a pull request, with the verdict of the second step."""
    summary, document = summarize(newer), diff_document(report)
    return replace(
        document,
        notices=(*summary.notices, *report.notes),
        lead=(Paragraph(summary.headline, "strong"), Paragraph(" ".join(summary.sentences))),
        sections=(*document.sections, *front_sections(newer)),
    )


def _both(report: DiffFile, rows: Sequence[tuple[str, BytesOfBoth]]) -> Table:
    cells = tuple((name.replace("_", " "), *_cells(row)) for name, row in rows)
    return Table((TableColumn("", least=16), *_columns(report)), cells)


def _changes(title: str, rows: Sequence[LayerOfBoth], report: DiffFile) -> Section:
    changed = [row for row in rows if row.change != "same"]
    if not changed:
        return Section("", (Paragraph(f"{title}: all {len(rows)} are the same.", "muted"),))
    cells: list[tuple[CellValue, ...]] = [
        (row.name or "(none)", *_cells(row), Cell(row.change, _CHANGE_TONES[row.change]))
        for row in changed[:ROWS]
    ]
    if len(changed) > ROWS:
        rest = sum(row.delta_bytes or 0 for row in changed[ROWS:])
        more = Cell(f"{len(changed) - ROWS} more", "muted")
        cells.append((more, rest, None, None, None, None))
    columns = (
        TableColumn("", "path", least=24),
        *_columns(report),
        TableColumn("change", least=6, rank=1),
    )
    heading = f"{title} that differ: {len(changed)} of {len(rows)}"
    return Section(heading, (Table(columns, tuple(cells)),))


def _columns(report: DiffFile) -> tuple[TableColumn, ...]:
    return (
        TableColumn("difference", "change"),
        TableColumn("", "number"),
        TableColumn(report.a.label[-22:], "bytes"),
        TableColumn(report.b.label[-22:], "bytes"),
    )


def _cells(row: BytesOfBoth) -> tuple[CellValue, ...]:
    a, b, delta = row.a_bytes, row.b_bytes, row.delta_bytes
    sizes = ("-" if a is None else a, "-" if b is None else b)
    if delta is None:
        return ("-", "", *sizes)
    tone: Tone = "bad" if delta > 0 else "good" if delta < 0 else "muted"
    return (Cell(delta, tone), Cell(_share(delta / a) if a else "", tone), *sizes)


def _share(ratio: float) -> str:
    if abs(ratio) < 0.0005:
        return ""
    return f"{ratio:+.1%}" if ratio < 10 else f"{1 + ratio:.0f} x"
