"""A sweep as a document and as CSV."""

from __future__ import annotations

import csv
import io
from typing import Final

from analyzer.model.contract.report.limit_figures import Fits
from analyzer.model.contract.report.sweep_file import SweepCell, SweepFile
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
from analyzer.report.untrusted import csv_cell
from analyzer.report.words import versions_line

_TONES: Final[dict[str, Tone]] = {
    "yes": "good",
    "no": "bad",
    "may not": "warning",
    "failed": "warning",
}

_FIGURES: Final = (
    *("requested_bytes", "allocated_bytes", "low_bytes", "high_bytes"),
    *("need_bytes", "limit_bytes", "margin_bytes", "fits", "op", "failed"),
)
"""Columns of the CSV that are fields of a cell; sizes in bytes."""

_ASKED: Final = ("target", "card", "remedy", "batch_size")
"""Columns of the CSV that are fields of a cell's question."""

_COLUMNS: Final = (
    TableColumn("model", "path", least=12),
    TableColumn("card", least=4),
    TableColumn("remedy", least=6, rank=1),
    TableColumn("batch", "number"),
    TableColumn("needs", "bytes"),
    TableColumn("limit", "bytes"),
    TableColumn("fits", least=6),
    TableColumn("", "bar", rank=3),
    TableColumn("requested", "bytes", rank=2),
    TableColumn("allocated", "bytes", rank=2),
)


def build_sweep_document(sweep: SweepFile) -> Document:
    """Return a sweep as a document."""
    most = max((cell.allocated_bytes or 0 for cell in sweep.cells), default=0) or 1
    rows = tuple(_row_of(cell, most) for cell in sweep.cells)
    reasons = dict.fromkeys(cell.failed for cell in sweep.cells if cell.failed)
    return Document(
        title=sweep.name,
        headline=summarize_sweep(sweep),
        badge="predicted",
        lead=(Paragraph("Each cell is an estimate of the steady step; no step ran."),),
        sections=(
            Section(
                "Predicted peak of the steady step",
                (
                    Table(_COLUMNS, rows),
                    *(Paragraph(reason, "warning", "! ") for reason in reasons),
                ),
            ),
        ),
        footer=versions_line(sweep.versions),
    )


def summarize_sweep(sweep: SweepFile) -> str:
    """Return one line with the number of cells and how many of them fit."""
    words = [fit_word(cell) for cell in sweep.cells]
    phrases = {
        "yes": "fit",
        "may not": "may not fit",
        "no": "do not fit",
        "failed": "have no estimate",
        "": "without a limit",
    }
    parts = [f"{words.count(word)} {phrase}" for word, phrase in phrases.items() if word in words]
    return f"{sweep.name}: {', '.join((f'{len(words)} cells', *parts))}"


def fit_word(cell: SweepCell) -> str:
    """Return ``yes``, ``no``, ``may not``, ``?`` (not known), ``failed``, or nothing without a limit."""
    if cell.failed:
        return "failed"
    if cell.limit_bytes is None:
        return ""
    words: dict[Fits, str] = {True: "yes", False: "no", None: "?"}
    return words.get(cell.fits, "may not")


def sweep_to_csv(sweep: SweepFile) -> str:
    """Return the cells as CSV, sizes in bytes."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*_ASKED, *_FIGURES))
    for cell in sweep.cells:
        asked = (getattr(cell.question, name) for name in _ASKED)
        values = (*asked, *(getattr(cell, name) for name in _FIGURES))
        writer.writerow([csv_cell(value) for value in values])
    return file.getvalue()


def _row_of(cell: SweepCell, most_bytes: int) -> tuple[CellValue, ...]:
    asked, word = cell.question, fit_word(cell)
    return (
        asked.target,
        asked.card,
        asked.remedy or "none",
        asked.batch_size,
        cell.need_bytes,
        cell.limit_bytes,
        Cell(word, _TONES.get(word, "plain")),
        None if cell.allocated_bytes is None else cell.allocated_bytes / most_bytes,
        cell.requested_bytes,
        cell.allocated_bytes,
    )
