"""The document of a log as sections for the terminal and the page; it computes no figures."""

from collections.abc import Iterator, Sequence
from typing import Final

from analyzer.model.contract.report.oom_file import (
    OomCard,
    OomDocument,
    OomFailure,
    OomPlan,
)
from analyzer.model.units import format_bytes
from analyzer.oom.failures import LoggedFailure
from analyzer.oom.pool_drawing import draw_pool
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

_MOST_FAILURES: Final = 5  # in full; the others have a row in a table
_MOST_ROWS: Final = 12  # of a table
_SIZE: Final = TableColumn("size", "bytes")
_FOOTER: Final = (
    "Sizes are exact if the log lists the chunks, else as precise as printed there."
)
_FACTS: Final = {
    "op": "op",
    "op_type": "type",
    "requested_by": "in full",
    "allocator": "allocator",
    "device": "device",
    "source": "source",
    "kernel": "kernel",
}
_FIGURES: Final = {
    "limit_bytes": "limit",
    "in_use_bytes": "in use",
    "peak_in_use_bytes": "most ever in use",
    "pool_bytes": "taken by the pool",
    "free_bytes": "free",
    "largest_hole_bytes": "largest free chunk",
    "waste_bytes": "unused inside chunks",
    "room_bytes": "allowed by the limit, not taken",
    "left_bytes": "limit minus in use",
}


def build_sections(
    document: OomDocument, failures: Sequence[LoggedFailure] = ()
) -> Document:
    """Return the document as sections; ``failures`` adds a drawing of each one's pool."""
    shown, others = (
        document.failures[:_MOST_FAILURES],
        document.failures[_MOST_FAILURES:],
    )
    sections: list[Section] = []

    for place, failure in enumerate(shown):
        logged = failures[place] if place < len(failures) else None
        sections.append(_lead_section(failure, place, len(document.failures)))
        sections += _parts(failure, logged)

    left = len(others) + document.failures_not_shown
    if left:
        sections.append(
            Section("", (Paragraph(f"{left:,} more failures: see the JSON."),))
        )

    notes, command = document.notes, document.next_command or ""
    if "TARGET" in command:
        card = ", and CARD is your card, such as t4" if "CARD" in command else ""
        target = (
            "In the next command, TARGET is your model, such as train.py:build_model"
        )
        notes += (f"{target}{card}.",)

    if notes:
        sections.append(Section("", tuple(map(Paragraph, notes))))

    model = f", matched with {document.matched_with}" if document.matched_with else ""
    lines = "1 line" if document.lines == 1 else f"{document.lines:,} lines"
    return Document(
        document.log,
        document.headline,
        tone="bad" if document.failures else "strong",
        subtitle=f"{lines}{model}",
        badge="out of memory" if document.failures else "",
        sections=tuple(sections),
        footer=_FOOTER if any(failure.sizes for failure in document.failures) else "",
        next_command=command,
    )


def _lead_section(failure: OomFailure, place: int, count: int) -> Section:
    verdict = failure.verdict
    heading, lead = "The failure", list[Block]()
    if count > 1:
        heading = f"LoggedFailure {place + 1} of {count}"
        lead.append(Paragraph(verdict.title, "warning"))

    lead += map(Paragraph, verdict.reasons)
    columns = (TableColumn("", least=9), TableColumn("", "whole", least=20))
    lead.append(Table(columns, tuple(_facts(failure))))

    reports = "" if failure.told == 1 else f", reported {failure.told} times"
    process = f", {failure.process}" if failure.process else ""
    cause = verdict.id.replace("cannot-tell", "cause unknown")
    note = f"line {failure.line:,}{reports}{process} · {cause}"
    return Section(heading, tuple(lead), note=note)


def _parts(failure: OomFailure, logged: LoggedFailure | None) -> Iterator[Section]:
    """Yield the parts of one failure: advice, drawing, figures, contents of the pool, its line."""
    advice: list[Block] = []
    for remedy in failure.remedies:
        advice.append(Paragraph(remedy.action, mark="- "))
        advice.append(Paragraph(remedy.because, "muted", "  "))

    if advice:
        yield Section("What to do", tuple(advice), level=2)

    drawing = draw_pool(logged) if logged is not None else None
    if drawing is not None:
        yield Section("", (drawing,), level=2)

    figures = tuple(_figures(failure))
    if figures:
        yield Section("Figures", (Table(COLUMNS["oom-figures"], figures),), level=2)

    matched = tuple(map(Paragraph, failure.matched))

    if failure.sizes:
        yield Section(
            "Chunks in use by size", (*matched, _list_sizes(failure)), level=2
        )
    elif matched:
        yield Section("Chunks in use by size", matched, level=2)

    if failure.compiled is not None:
        yield Section(
            "Buffers of the program", _list_buffers(failure.compiled), level=2
        )

    if failure.verdict.missing:
        lines = tuple(
            Paragraph(line, "muted", "- ") for line in failure.verdict.missing
        )
        yield Section("The log lacks", lines, level=2)

    if failure.words and logged is not None:
        yield Section(
            "The line itself", (Paragraph(failure.words),), level=2, is_folded=True
        )


def _facts(failure: OomFailure) -> Iterator[tuple[str, str]]:
    asked = failure.asked
    if asked is not None:
        size, ends = (
            asked.requested_bytes,
            f"{asked.low_bytes:,} to {asked.high_bytes:,}",
        )
        is_close = asked.high_bytes - asked.low_bytes < 256
        about = "" if is_close else "about "
        shown = f"{size:,}" if asked.is_exact else ends
        yield "request", f"{about}{format_bytes(size)} ({shown} bytes)"

        if asked.is_exact and asked.rounded_bytes != size:
            yield "rounded up", f"{asked.rounded_bytes:,} bytes"

        yield "size from", asked.basis

        if asked.shape is not None:
            yield "shape", f"{list(asked.shape)} {asked.dtype or ''}".strip()

    for name, label in _FACTS.items():
        text = getattr(failure, name)
        if text and (label == name or text != failure.op):
            yield label, text

    if failure.card is not None and (failure.card.name or failure.card.total_bytes):
        yield "card", _describe_card(failure.card)


def _describe_card(card: OomCard) -> str:
    parts = [card.name or "a card"]
    if card.total_bytes:
        source = " according to the catalogue" if card.is_from_catalogue else ""
        parts.append(f"{format_bytes(card.total_bytes)}{source}")

    if card.free_bytes is not None:
        parts.append(f"{format_bytes(card.free_bytes)} free at the failure")
    return ", ".join(parts)


def _figures(failure: OomFailure) -> Iterator[tuple[str, int, Cell]]:
    for name, label in _FIGURES.items():
        size = getattr(failure, name)
        is_same = name == "left_bytes" and failure.free_bytes is not None
        if size is None or is_same:
            continue

        low, high = failure.ranges.get(name, (size, size))
        exact = f"{size:,}" if low == high else f"{low:,} to {high:,}"
        yield label, size, Cell(exact, "muted")


def _list_sizes(failure: OomFailure) -> Table:
    columns, rows = COLUMNS["oom-sizes"], []
    if not any(row.names for row in failure.sizes):
        columns = columns[:-1]

    for row in failure.sizes[:_MOST_ROWS]:
        asked = "requested size" if row.is_asked else ""
        cells = (
            row.count,
            row.size_bytes,
            row.total_bytes,
            asked,
            "".join(row.names[:1]),
        )
        rows.append(cells[: len(columns)])

    others, caption = failure.sizes[_MOST_ROWS:], ""
    if others:
        chunks = sum(row.count for row in others)
        total = format_bytes(sum(row.total_bytes for row in others))
        caption = f"{chunks:,} chunks of {len(others):,} other sizes hold {total}; see the JSON."

    return Table(columns, tuple(rows), caption)


def _list_buffers(plan: OomPlan) -> tuple[Table, Table]:
    sums = Table((TableColumn("part"), _SIZE), tuple(plan.sums_bytes.items()))
    shape, owner = (
        TableColumn("shape", least=14, rank=1),
        TableColumn("buffer of", "path", least=20),
    )
    rows = []

    for buffer in plan.buffers[:_MOST_ROWS]:
        rows.append((buffer.size_bytes, buffer.shape, buffer.operator or buffer.label))

    return sums, Table((_SIZE, shape, owner), tuple(rows))
