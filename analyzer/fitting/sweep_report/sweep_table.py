"""A sweep as a table in the terminal and as CSV. Computes nothing: every number is a cell's."""

from __future__ import annotations

import csv
import io

from rich.console import Console, Group, RenderableType
from rich.text import Text

from analyzer.model.contract.report.sweep_file import SweepCell, SweepFile
from analyzer.model.units import format_bytes
from analyzer.report.terminal.fitted_tables import TableColumn, fitted_table, number, whole_numbers
from analyzer.report.untrusted import csv_cell, printable, printable_path

_STYLES = {"yes": "green", "no": "red", "may not": "yellow", "failed": "yellow"}
"""Of ``verdict_word``'s words, those that have a colour."""

_FIGURES = (
    *("requested_bytes", "allocated_bytes", "low_bytes", "high_bytes"),
    *("need_bytes", "limit_bytes", "margin_bytes", "fits", "op", "failed"),
)
"""Columns of the CSV that are a cell's own fields; sizes in bytes."""

_ASKED = ("target", "card", "remedy", "batch_size")
"""Columns before them: fields of a cell's question."""


def print_sweep(sweep: SweepFile, console: Console) -> None:
    """Print the whole sweep."""
    console.print(render_sweep(sweep, console.width), markup=False)


def render_sweep(sweep: SweepFile, width: int = 100) -> RenderableType:
    """Return the sweep as one renderable, ``width`` columns wide."""
    columns = [
        TableColumn(name="model", least=12, shorten=printable_path),
        TableColumn(name="card", least=4),
        TableColumn(name="remedy", least=6, rank=1),
        number("batch"),
        number("requested"),
        number("allocated"),
        number("limit"),
        TableColumn(name="fits", least=6),
    ]
    rows: list[list[str | Text]] = [_row(cell) for cell in sweep.cells]
    parts: list[RenderableType] = [
        Text(sweep_line(sweep), style="bold"),
        fitted_table("Peak of the steady step, predicted", columns, rows, width),
    ]
    reasons = dict.fromkeys(cell.failed for cell in sweep.cells if cell.failed)
    parts += [Text(f"! {printable(reason, 400)}", style="yellow") for reason in reasons]
    return Group(*map(whole_numbers, parts))


def sweep_line(sweep: SweepFile) -> str:
    """Return in one line how many cells there are, and how many of them fit."""
    told = [verdict_word(cell) for cell in sweep.cells]
    parts = [f"{len(told)} cells"]
    for word, says in (
        ("yes", "fit"),
        ("may not", "may not fit"),
        ("no", "do not fit"),
        ("failed", "have no estimate"),
        ("", "without a limit"),
    ):
        if told.count(word):
            parts.append(f"{told.count(word)} {says}")
    return f"{printable(sweep.name, 80)}: {', '.join(parts)}"


def verdict_word(cell: SweepCell) -> str:
    """Return whether a cell fits, in a word.

    It is ``yes``, ``no``, ``may not`` or ``?`` (which cannot be told), ``failed`` where there is no
    estimate, and empty where there is no limit to hold it against.
    """
    if cell.failed:
        return "failed"
    if cell.limit_bytes is None:
        return ""
    if isinstance(cell.fits, bool):
        return "yes" if cell.fits else "no"
    return cell.fits or "?"


def sweep_csv(sweep: SweepFile) -> str:
    """Return the cells as CSV, sizes in bytes."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*_ASKED, *_FIGURES))
    for cell in sweep.cells:
        asked = (getattr(cell.question, name) for name in _ASKED)
        values = (*asked, *(getattr(cell, name) for name in _FIGURES))
        writer.writerow([csv_cell(value) for value in values])
    return file.getvalue()


def _row(cell: SweepCell) -> list[str | Text]:
    asked, word = cell.question, verdict_word(cell)
    sizes = (cell.requested_bytes, cell.allocated_bytes, cell.limit_bytes)
    return [
        printable(asked.target, 200),
        printable(asked.card, 30),
        printable(asked.remedy or "none", 40),
        str(asked.batch_size),
        *("" if size is None else format_bytes(size) for size in sizes),
        Text(word, style=_STYLES.get(word, "")),
    ]
