"""The document of a log as sections for the terminal and the page; it computes no figures.

The pool is drawn to scale, cut into rows like a text into lines, so that a chunk of a thousandth is
still visible. The failed request is drawn below to the same scale.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup

from analyzer.model.contract.oom_file import OomDocument, OomFailure, OomPlan
from analyzer.model.units import Range, format_bytes
from analyzer.oom.failures import LoggedFailure
from analyzer.oom.wordings import NAMES
from analyzer.report.render.sections import (
    COLUMNS,
    Block,
    Cell,
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
)
from analyzer.report.untrusted import unbroken

_WIDTH = 1000  # units of a row
_ROWS = 24  # rows for the whole pool
_HEIGHT = 16  # units of a row
_STEP = 20  # units from row to row
_TOP = 4  # units above the first row
_GAP = 0.6  # units between chunks wider than three units
_RECT = Markup(
    '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
)
_KEY = Markup(
    '<span class="key"><svg class="swatch" width="12" height="12" aria-hidden="true">'
    '<rect width="12" height="12" class="{}"/></svg> {}</span> '
)
_FIGURE = Markup(
    '<figure class="drawing"><figcaption>The pool when the request failed, to scale '
    '<small>{note}</small></figcaption><svg class="pool" viewBox="0 0 {width} {height}" '
    'preserveAspectRatio="none" role="img" aria-label="Chunks of the allocator by address">'
    '{marks}</svg><p class="legend">{keys}</p><p class="pointed" aria-live="polite"></p></figure>'
)


def draw_pool(failure: LoggedFailure) -> Markup | None:
    """Return a failure's pool as a drawing, its regions one after the other; None without chunks."""
    total = sum(size for _, size, _ in failure.chunks)
    if not total:
        return None

    row_bytes = -(-total // _ROWS)
    boxes = [(0, total, "pool-free", "the pool")]
    end = 0

    for size, look, title in _merge_small(failure, row_bytes // _WIDTH):
        boxes.append((end, size, look, title))
        end += size

    if failure.asked is not None:
        size = min(failure.asked.rounded_bytes, total)
        start = (_ROWS + 1) * row_bytes  # below an empty row
        boxes.append((start, size, "pool-request", "the request, to the same scale"))
        end = start + size

    marks = [mark for box in boxes for mark in _draw(row_bytes, *box)]
    return _FIGURE.format(
        note=unbroken(f"One row is {format_bytes(row_bytes)}."),
        width=_WIDTH,
        height=2 * _TOP + -(-end // row_bytes) * _STEP,
        marks=Markup("").join(marks),
        keys=Markup("").join(_KEY.format(*one) for one in NAMES["legend"].items()),
    )


def _merge_small(
    failure: LoggedFailure,
    tiny_bytes: int,
) -> Iterator[tuple[int, str, str]]:
    """Yield size, look and title of each chunk; small neighbours become one."""
    asked_bytes = failure.asked.rounded_bytes if failure.asked else 0
    hole_bytes = failure.largest_hole.low if failure.largest_hole else 0
    chunks = sorted(failure.chunks)

    for is_tiny, group in groupby(chunks, lambda chunk: chunk[1] < tiny_bytes):
        if is_tiny:
            sizes = [size for _, size, _ in group]
            yield sum(sizes), "pool-used", f"{len(sizes):,} small chunks"
            continue

        for address, size, is_used in group:
            title = f"{'in use' if is_used else 'free'} at {address:#x}"

            look = "pool-used"

            if is_used and size == asked_bytes:
                look = "pool-same"
            elif not is_used:
                look = "pool-hole" if size == hole_bytes else "pool-chunk"

            yield size, look, title


def _draw(
    row_bytes: int,
    offset: int,
    size: int,
    look: str,
    title: str,
) -> Iterator[Markup]:
    """Yield a range of bytes: one rectangle for each row that it touches."""
    title = f"{title}: {format_bytes(size)} ({size:,} bytes)"
    end = offset + size

    while offset < end:
        row, within = divmod(offset, row_bytes)
        taken = min(end - offset, row_bytes - within)

        width = taken / row_bytes * _WIDTH
        if width > 3 and look != "pool-free":
            width -= _GAP

        x = round(within / row_bytes * _WIDTH, 2)
        y = _TOP + row * _STEP
        shown_width = round(max(width, 1), 2)

        yield _RECT.format(x, y, shown_width, _HEIGHT, look, title)
        offset += taken


_MOST_FAILURES = 5  # in full; the others are only counted
_MOST_ROWS = 8  # of a table
_SIZE = TableColumn("size", "bytes")


def build_sections(
    document: OomDocument,
    failures: Sequence[LoggedFailure] = (),
) -> Document:
    """Return the document as sections; ``failures`` adds a drawing of each one's pool."""
    sections = []
    count = len(document.failures)

    for place, failure in enumerate(document.failures[:_MOST_FAILURES]):
        heading = "The failure"
        if count > 1:
            heading = f"Failure {place + 1} of {count}"

        sections.append(_lead_section(failure, heading, is_first=place == 0))
        sections += _describe_parts(failure, failures[place : place + 1])

    notes = list(document.notes)
    left = count - _MOST_FAILURES + document.failures_not_shown
    if left > 0:
        notes.append(f"{left:,} more failures: see the JSON.")

    first = [_first_action(one) for one in document.failures[:1]]
    if notes and not count:
        first = [notes.pop(0)]

    sections.append(Section("", tuple(map(Paragraph, notes))))

    lead = [Paragraph(text, "strong") for text in first]
    command = document.next_command or ""
    unknown = [text for name, text in NAMES["placeholders"].items() if name in command]

    if unknown:
        lead.append(Paragraph(f"Name {' and '.join(unknown)}, for: {command}"))

    if unknown or (count and not command):
        words = ("analyze", "oom", document.log, "--html", "oom.html")
        command = "" if document.log == "standard input" else shlex.join(words)

    return Document(
        document.log,
        document.headline,
        tone="bad" if count else "strong",
        subtitle=f"{document.lines:,} lines",
        badge="out of memory" if count else "",
        lead=tuple(lead),
        sections=tuple(sections),
        next_command=command,
    )


def _first_action(failure: OomFailure) -> str:
    """Return the most direct remedy of a failure with its reason."""
    if not failure.remedies:
        return "The log does not show what to change."

    return f"{failure.remedies[0].action} {failure.remedies[0].because}"


def _lead_section(failure: OomFailure, heading: str, *, is_first: bool) -> Section:
    lead: list[Block] = []

    if not is_first:  # the headline is the title of the first
        lead.append(Paragraph(failure.verdict.title, "warning"))
        lead.append(Paragraph(_first_action(failure), "strong"))

    lead += map(Paragraph, failure.verdict.reasons)
    columns = (TableColumn("", least=9), TableColumn("", "whole", least=20))
    lead.append(Table(columns, tuple(_list_facts(failure))))
    process = f", {failure.process}" if failure.process else ""

    return Section(heading, tuple(lead), note=f"line {failure.line:,}{process}")


def _describe_parts(
    failure: OomFailure,
    logged: Sequence[LoggedFailure],
) -> Iterator[Section]:
    """Yield the parts of one failure: advice, drawing, figures, contents of the pool, its line."""
    advice: list[Block] = []

    for remedy in failure.remedies[1:]:
        advice.append(Paragraph(remedy.action, mark="- "))
        advice.append(Paragraph(remedy.because, "muted", "  "))

    parts: dict[str, list[Block]] = {"What else may help": advice}
    parts["The pool"] = [*filter(None, map(draw_pool, logged))]

    rows = tuple(_list_figures(failure))
    parts["Figures"] = [Table(COLUMNS["oom-figures"], rows)] if rows else []
    parts["Chunks in use by size"] = [*_list_sizes(failure)] if failure.sizes else []

    if failure.compiled is not None:
        parts["Buffers of the program"] = [*_list_buffers(failure.compiled)]

    missing = failure.verdict.missing
    parts["The log lacks"] = [Paragraph(line, "muted", "- ") for line in missing]

    for heading, blocks in parts.items():
        if blocks:
            yield Section(heading, tuple(blocks), level=2)

    if failure.words and logged:
        words = Paragraph(failure.words)
        yield Section("The line itself", (words,), level=2, is_folded=True)


def _write_exact(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _list_facts(failure: OomFailure) -> Iterator[tuple[str, str]]:
    asked = failure.asked
    card = failure.card

    if asked is not None:
        size = Range(asked.low_bytes, asked.high_bytes)
        shown = _write_exact(size.low, size.high)
        yield "request", f"{size} ({shown} bytes, from {asked.basis})"

    if failure.shape:
        yield "shape", f"{list(failure.shape)} {failure.dtype or ''}".strip()

    for name, label in NAMES["facts"].items():
        text = getattr(failure, name)
        if text and (name == "op" or text != failure.op):
            yield label, text

    if card is not None and card.total_bytes:
        source = " according to the catalogue" if card.is_from_catalogue else ""
        name = f"{card.name}, " if card.name else ""
        yield "card", f"{name}{format_bytes(card.total_bytes)}{source}"


def _list_figures(failure: OomFailure) -> Iterator[tuple[str, int, Cell]]:
    for name, label in NAMES["figures"].items():
        size = getattr(failure, name)
        if size is None:
            continue

        bounds = failure.ranges.get(name, (size, size))
        yield label, size, Cell(_write_exact(*bounds), "muted")


def _list_sizes(failure: OomFailure) -> Iterator[Block]:
    rows = [
        (
            row.count,
            row.size_bytes,
            row.total_bytes,
            "requested size" if row.is_asked else "",
        )
        for row in failure.sizes[:_MOST_ROWS]
    ]

    yield Table(COLUMNS["oom-sizes"], tuple(rows))

    left = len(failure.sizes) - _MOST_ROWS
    if left > 0:
        yield Paragraph(f"{left:,} other sizes: see the JSON.", "muted")


def _list_buffers(plan: OomPlan) -> tuple[Table, Table]:
    sums = Table((TableColumn("part"), _SIZE), tuple(plan.sums_bytes.items()))
    shape = TableColumn("shape", least=14, rank=1)
    owner = TableColumn("buffer of", "path", least=20)
    rows = [
        (buffer.size_bytes, buffer.shape, buffer.operator or buffer.label)
        for buffer in plan.buffers[:_MOST_ROWS]
    ]

    return sums, Table((_SIZE, shape, owner), tuple(rows))
