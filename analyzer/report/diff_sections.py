"""Build the document of a difference between two steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analyzer.explain.comparison import KIND_WORDS, compare
from analyzer.model.contract import report_file
from analyzer.model.contract.fields import StrPath
from analyzer.model.errors import InputError
from analyzer.model.recording.records import Recording
from analyzer.model.units import (
    format_bytes,
    parse_bytes,
)
from analyzer.report.output_files import ReportOutput, write_text
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
    return Table((TableColumn("", least=16), *COLUMNS["differences"]), cells)


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


Side = tuple[report_file.ReportFile, Recording]


@dataclass(frozen=True, eq=False)
class Diff(ReportOutput):
    """The difference of two steps at their peaks; the page shows ``newer``, the second, in full."""

    report: report_file.DiffFile
    newer: Side = field(repr=False)

    @property
    def growth_bytes(self) -> int:
        """Requested bytes by which the second peak is higher; negative if it is lower."""
        return self._requested.delta_bytes or 0

    @property
    def _requested(self) -> report_file.PeakOfBoth:
        return next(row for row in self.report.peak if row.number == "requested")

    def exceeds(self, allowed: str) -> str:
        """Return a sentence if the requested peak grew by more than ``allowed`` (5% or 100MiB)."""
        before = self._requested.a_bytes or 0
        if self.growth_bytes <= allowed_growth(allowed, before):
            return ""

        share = f" ({self.growth_bytes / before:+.1%})" if before else ""
        growth = format_bytes(self.growth_bytes)
        start = format_bytes(before)
        end = format_bytes(before + self.growth_bytes)

        return (
            f"The requested peak grew by {growth}{share}, from {start} to {end}; "
            f"the limit is {allowed.strip()}."
        )

    def to_html(self, path: StrPath) -> None:
        """Write the page of the second step, with the difference as its first view."""
        from analyzer.report.page.build import render

        write_text(Path(path), render(*self.newer, comparison=self.report))

    def to_markdown(self, path: StrPath) -> None:
        """Write a summary for a pull request."""
        from analyzer.report.render.markdown import to_markdown

        summary = diff_summary(self.report, self.newer[0])
        write_text(Path(path), to_markdown(summary))

    def __repr__(self) -> str:
        return f"<difference: {self.report.headline}>"

    def _repr_html_(self) -> str:
        from analyzer.report.page.build import render_inline

        return render_inline(self.newer[0], comparison=self.report)


def build_diff(
    older: Side,
    newer: Side,
    *,
    names: Sequence[str | None] = (None, None),
) -> Diff:
    """Compare two steps; ``names`` are the user's names, such as paths; None to choose them."""
    first, second = names
    labels = None

    if first is not None and second is not None and first != second:
        if Path(first).name != Path(second).name:
            first = Path(first).name
            second = Path(second).name

        labels = first, second
        kind = KIND_WORDS[older[0].kind]
        newer_kind = KIND_WORDS[newer[0].kind]
        if kind != newer_kind:
            labels = f"{first} ({kind})", f"{second} ({newer_kind})"

    return Diff(compare(*older, *newer, labels=labels), newer)


def allowed_growth(allowed: str, before_bytes: int) -> int:
    """Return an allowed growth in bytes: ``5%`` of ``before_bytes``, or a size; else raise."""
    text = allowed.strip()
    number = text.removesuffix("%").rstrip()

    is_number = number.replace(".", "", 1).isdecimal()
    if text.endswith("%") and is_number:
        return int(before_bytes * float(number) / 100)

    try:
        return parse_bytes(text)
    except InputError:
        raise InputError(
            f"{allowed!r} is neither a share nor a size.",
            hint="Write it as 5% or 5MiB.",
        ) from None
