"""The document of a log as sections for the terminal and the page; it computes no figures.

The page also draws the pool to scale: it is cut into rows like a text into lines, so that a chunk of a
thousandth is still visible. The failed request is drawn below to the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from markupsafe import Markup

from analyzer.model.contract.report.oom_file import (
    AskedFor,
    OomCard,
    OomDocument,
    OomFailure,
    OomPlan,
)
from analyzer.model.units import format_bytes
from analyzer.oom.dumped_state import regions_in_order
from analyzer.oom.failure_case import OomCase
from analyzer.oom.log_records import DumpedChunk
from analyzer.report.render.sections import (
    Block,
    Cell,
    Code,
    Document,
    Drawing,
    Paragraph,
    Section,
    Table,
    TableColumn,
)

_MOST_FAILURES: Final = 5  # in full; the others have a row in a table
_MOST_ROWS: Final = 12  # of a table
_FIGURES: Final = (
    ("limit", "limit_bytes"),
    ("in use", "in_use_bytes"),
    ("most ever in use", "peak_in_use_bytes"),
    ("taken by the pool", "pool_bytes"),
    ("free", "free_bytes"),
    ("largest free chunk", "largest_hole_bytes"),
    ("unused inside chunks", "waste_bytes"),
    ("allowed by the limit, not taken", "room_bytes"),
    ("limit minus in use", "left_bytes"),
)
_TEXTS: Final = (
    *(("op", "op"), ("type", "op_type"), ("in full", "requested_by"), ("allocator", "allocator")),
    *(("device", "device"), ("source", "source"), ("kernel", "kernel")),
)
_NAME: Final = TableColumn("", least=9)
_FOOTER: Final = (
    "Sizes are computed from the chunks of the allocator if the log lists them, else from its own "
    "figures with the precision that is printed."
)


def build_sections(document: OomDocument, cases: Sequence[OomCase] = ()) -> Document:
    """Return the document as sections; ``cases`` adds a drawing of each failure's pool."""
    failures = document.failures
    sections: list[Section] = []
    for place, failure in enumerate(failures[:_MOST_FAILURES]):
        case = cases[place] if place < len(cases) else None
        sections += _failure_sections(failure, place, len(failures), case)
    if len(failures) > _MOST_FAILURES:
        others = _other_failures(failures[_MOST_FAILURES:], document.failures_not_shown)
        sections.append(Section("The other failures", (others,)))
    if document.next_command:
        hint = "Replace TARGET by your model, such as train.py:build_model."
        hints = (Paragraph(hint, "muted"),) if "TARGET" in document.next_command else ()
        sections.append(Section("Next", (Code(document.next_command), *hints)))
    if document.notes:
        sections.append(Section("", tuple(map(Paragraph, document.notes))))
    model = f", matched with {document.matched_with}" if document.matched_with else ""
    return Document(
        document.log,
        document.headline,
        tone="bad" if failures else "strong",
        subtitle=f"{document.lines:,} lines{model}",
        badge="out of memory" if failures else "",
        sections=tuple(sections),
        footer=_FOOTER if any(failure.sizes for failure in failures) else "",
    )


def _failure_sections(
    failure: OomFailure, place: int, count: int, case: OomCase | None
) -> Iterator[Section]:
    yield _lead_section(failure, place, count)
    if failure.remedies:
        advice = (
            block
            for remedy in failure.remedies
            for block in (
                Paragraph(remedy.action, mark="- "),
                Paragraph(remedy.because, "muted", "  "),
            )
        )
        yield Section("What to do", tuple(advice), level=2)
    drawing = draw_pool(case) if case is not None else None
    if drawing is not None:
        yield Section("", (drawing,), level=2)
    figures = tuple(_figures(failure))
    if figures:
        columns = (_NAME, TableColumn("", "bytes"), TableColumn("", "number"))
        yield Section("Figures", (Table(columns, figures),), level=2)
    yield from _holder_sections(failure)
    if failure.verdict.missing:
        lines = tuple(Paragraph(line, "muted", "- ") for line in failure.verdict.missing)
        yield Section("The log lacks", lines, level=2)
    if failure.words and case is not None:
        yield Section("The line itself", (Code(failure.words),), level=2, is_folded=True)


def _lead_section(failure: OomFailure, place: int, count: int) -> Section:
    verdict = failure.verdict
    heading = "The failure" if count == 1 else f"Failure {place + 1} of {count}"
    reports = "" if failure.told == 1 else f", reported {failure.told} times"
    process = f", {failure.process}" if failure.process else ""
    lead: list[Block] = [Paragraph(verdict.title, "warning")] if count > 1 else []
    lead += [Paragraph(reason) for reason in verdict.reasons]
    lead.append(Table((_NAME, TableColumn("", "path", least=20)), tuple(_facts(failure))))
    note = f"line {failure.line:,}{reports}{process} · {verdict.id}"
    return Section(heading, tuple(lead), note=note)


def _holder_sections(failure: OomFailure) -> Iterator[Section]:
    """Yield what the pool holds: by owner, by size, in XLA's buffers, by node."""
    total = sum(row.size_bytes for row in failure.holders)
    if len(failure.holders) > 1 and total:
        kinds = (
            TableColumn("", "bytes"),
            TableColumn("", "percent"),
            TableColumn("", "bar", rank=1),
        )
        rows = tuple(
            (row.who, row.size_bytes, *(row.size_bytes / total,) * 2) for row in failure.holders
        )
        yield Section("Who holds it", (Table((TableColumn("", least=26), *kinds), rows),), level=2)
    stories = tuple(map(Paragraph, (*failure.stories, *failure.matched)))
    if stories or failure.sizes:
        yield Section("Chunks in use by size", (*stories, *_sizes(failure)), level=2)
    if failure.compiled is not None:
        yield Section("Buffers of the program", tuple(_xla_tables(failure.compiled)), level=2)
    if failure.tensors_by_node:
        nodes = tuple((row.size_bytes, row.who) for row in failure.tensors_by_node[:_MOST_ROWS])
        table = Table((TableColumn("size", "bytes"), TableColumn("node", "path", least=20)), nodes)
        yield Section("Live tensors by node", (table,), level=2)


def _facts(failure: OomFailure) -> Iterator[tuple[str, str]]:
    asked = failure.asked
    if asked is not None:
        yield "request", _request_words(asked)
        yield "known by", asked.basis
        if asked.shape is not None:
            yield "shape", f"[{', '.join(map(str, asked.shape))}] {asked.dtype or ''}".strip()
    for label, name in _TEXTS:
        text = getattr(failure, name)
        is_repeated = name in ("op_type", "requested_by") and text == failure.op
        if text and not is_repeated:
            yield label, text
    if failure.card is not None and (failure.card.name or failure.card.total_bytes):
        yield "card", _card_words(failure.card)


def _request_words(asked: AskedFor) -> str:
    size, rounded = asked.requested_bytes, asked.rounded_bytes
    if asked.is_exact:
        more = "" if rounded == size else f", rounded up to {rounded:,}"
        return f"{format_bytes(size)} ({size:,} bytes{more})"
    about = "" if asked.high_bytes - asked.low_bytes < 256 else "about "
    return f"{about}{format_bytes(size)} ({asked.low_bytes:,} to {asked.high_bytes:,} bytes)"


def _card_words(card: OomCard) -> str:
    parts = [card.name or "a card"]
    if card.total_bytes:
        source = " according to the catalogue" if card.is_from_catalogue else ""
        parts.append(f"{format_bytes(card.total_bytes)}{source}")
    if card.free_at_start_bytes is not None:
        parts.append(f"{format_bytes(card.free_at_start_bytes)} free at the start")
    if card.free_bytes is not None:
        parts.append(f"{format_bytes(card.free_bytes)} free at the failure")
    return ", ".join(parts)


def _figures(failure: OomFailure) -> Iterator[tuple[str, int, Cell]]:
    for label, name in _FIGURES:
        size = getattr(failure, name)
        if size is None or (name == "left_bytes" and failure.free_bytes is not None):
            continue
        ends = failure.ranges.get(name)
        exact = f"{size:,} bytes" if ends is None else f"{ends[0]:,} to {ends[1]:,} bytes"
        yield label, size, Cell(exact, "muted")


def _sizes(failure: OomFailure) -> Iterator[Table]:
    if not failure.sizes:
        return
    columns = (
        *(TableColumn("chunks", "number"), TableColumn("bytes each", "number")),
        *(TableColumn("together", "bytes"), TableColumn("", rank=1)),
        TableColumn("likeliest tensor", least=24),
    )
    count = len(columns) if any(row.names for row in failure.sizes) else len(columns) - 1
    rows = tuple(
        (row.count, row.size_bytes, row.total_bytes, asked, "".join(row.names[:1]))[:count]
        for row in failure.sizes[:_MOST_ROWS]
        for asked in ("requested size" if row.is_asked else "",)
    )
    others, caption = failure.sizes[_MOST_ROWS:], ""
    if others:
        chunks = sum(row.count for row in others)
        total = format_bytes(sum(row.total_bytes for row in others))
        caption = f"{chunks:,} chunks of {len(others):,} other sizes hold {total}; see the JSON."
    yield Table(columns[:count], rows, caption)


def _xla_tables(plan: OomPlan) -> Iterator[Table]:
    size = TableColumn("size", "bytes")
    yield Table((TableColumn("part"), size), tuple(plan.sums_bytes.items()))
    columns = (
        size,
        TableColumn("shape", least=14, rank=1),
        TableColumn("buffer of", "path", least=20),
    )
    rows = ((row.size_bytes, row.shape, row.operator or row.label) for row in plan.buffers)
    yield Table(columns, tuple(rows)[:_MOST_ROWS])


def _other_failures(failures: Sequence[OomFailure], uncounted: int) -> Table:
    columns = (
        *(TableColumn("line", "number"), TableColumn("requested", "bytes")),
        *(TableColumn("cause", least=12), TableColumn("op", "path", least=16)),
    )
    rows = tuple(
        (
            one.line,
            asked.requested_bytes if asked else None,
            one.verdict.id,
            one.op or one.allocator,
        )
        for one in failures[:_MOST_ROWS]
        for asked in (one.asked,)
    )
    left = len(failures) - _MOST_ROWS + uncounted
    return Table(columns, rows, f"{left:,} more" if left > 0 else "")


_WIDTH: Final = 1000  # units of a row
_ROWS: Final = 24  # rows for the whole pool
_HEIGHT: Final = 16  # units of a row
_STEP: Final = 20  # units from row to row
_REGION_GAP: Final = 8  # units
_LEAST: Final = 1  # units; smaller neighbours are drawn as one
_GAP: Final = 0.6  # units between chunks wider than three units
_MOST_LOOKS: Final = 3  # sizes with a colour of their own
_LEAST_SHARE: Final = 0.03  # of the bytes in use, for a colour of its own
_MOST_REGIONS: Final = 60  # the largest are drawn

_RECT: Final = Markup(
    '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
)
_SVG: Final = Markup(
    '<svg class="pool" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
    'aria-label="Chunks of the allocator by address">{}</svg>'
)


def draw_pool(case: OomCase) -> Drawing | None:
    """Return a failure's pool as a drawing; None if the log lists no chunks."""
    regions = sorted(regions_in_order(case.failure.dump), key=_bytes_of, reverse=True)
    total = sum(map(_bytes_of, regions))
    if not total:
        return None
    canvas = _Canvas(row_bytes=max(-(-total // _ROWS), 1))
    looks = _looks(case)
    for place, region in enumerate(regions[:_MOST_REGIONS], start=1):
        _draw_region(canvas, region, place, looks, case)
        canvas.advance(_bytes_of(region), _REGION_GAP)
    request = case.request.rounded.middle if case.request is not None else 0
    if request:
        title = f"the request, to the same scale: {format_bytes(request)} ({request:,} bytes)"
        drawn = min(request, _ROWS * canvas.row_bytes)
        canvas.top += 6
        canvas.draw(0, drawn, "pool-request", title)
        canvas.advance(drawn, 0)
    note = f"One row is {format_bytes(canvas.row_bytes)}."
    if len(regions) > _MOST_REGIONS:
        note += f" The {len(regions) - _MOST_REGIONS} smallest regions are not drawn."
    if not case.state.is_complete:
        note += " The chunk list is incomplete."
    svg = _SVG.format(_WIDTH, canvas.top + 6, Markup("").join(canvas.boxes))
    caption = "The pool when the request failed, to scale"
    return Drawing(caption, svg, note, tuple(_legend(case, looks)))


class _Canvas:
    """Rectangles by rows of ``row_bytes``; ``top`` is the place of the next region."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.top = 4
        self.boxes: list[Markup] = []

    def draw(self, offset: int, size: int, look: str, title: str) -> None:
        """Draw a range of bytes: one rectangle for each row that it touches."""
        end = offset + size
        while offset < end:
            row, within = divmod(offset, self.row_bytes)
            taken = min(end - offset, self.row_bytes - within)
            width = taken / self.row_bytes * _WIDTH
            if width > 3 and look != "pool-free":
                width -= _GAP
            x, width = round(within / self.row_bytes * _WIDTH, 2), round(max(width, _LEAST), 2)
            top = self.top + row * _STEP
            self.boxes.append(_RECT.format(x, top, width, _HEIGHT, look, title))
            offset += taken

    def advance(self, size: int, gap: int) -> None:
        """Move below a range of bytes that starts a row."""
        self.top += max(-(-size // self.row_bytes), 1) * _STEP + gap


def _looks(case: OomCase) -> dict[int, str]:
    """Return a CSS class for each of the sizes with most bytes, the requested size first."""
    looks: dict[int, str] = {}
    for size in sorted(case.sizes, key=lambda size: (not size.is_asked, -size.total_bytes)):
        is_large = size.total_bytes >= _LEAST_SHARE * (case.in_use_bytes or 0)
        if size.is_asked or (is_large and len(looks) < _MOST_LOOKS):
            looks[size.size_bytes] = "pool-same" if size.is_asked else f"pool-size-{len(looks)}"
    return looks


def _legend(case: OomCase, looks: dict[int, str]) -> Iterator[tuple[str, str]]:
    counts = {size.size_bytes: size.count for size in case.sizes}
    for size_bytes, look in looks.items():
        words = f"{counts[size_bytes]:,} × {format_bytes(size_bytes)}"  # noqa: RUF001
        yield look, words + (", the requested size" if look == "pool-same" else "")
    yield from (("pool-used", "other chunks in use"), ("pool-hole", "the largest free chunk"))
    yield "pool-free", "free"
    if case.request is not None:
        yield "pool-request", "the request, below the pool"


def _draw_region(
    canvas: _Canvas,
    region: Sequence[DumpedChunk],
    place: int,
    looks: dict[int, str],
    case: OomCase,
) -> None:
    """Draw a region's background and its chunks; tiny neighbours become one rectangle."""
    start, size = region[0].address, _bytes_of(region)
    hole = case.state.largest_hole
    largest = hole.low if hole is not None and case.state.is_complete else 0
    canvas.draw(0, size, "pool-free", f"region {place}: {format_bytes(size)} at {start:#x}")
    least_bytes = max(canvas.row_bytes / _WIDTH * _LEAST, 1)

    def group_of(chunk: DumpedChunk) -> int:
        is_tiny = chunk.size_bytes < least_bytes
        return -1 - int((chunk.address - start) / least_bytes) if is_tiny else chunk.address

    for _, same in groupby(region, group_of):
        chunks = list(same)
        first, bytes_ = chunks[0], _bytes_of(chunks)
        look, title = "pool-chunk", f"{format_bytes(bytes_)} free"
        if len(chunks) > 1:
            look, title = "pool-used", f"{len(chunks):,} small chunks, {format_bytes(bytes_)}"
        elif first.is_used:
            look, title = looks.get(bytes_, "pool-used"), f"{format_bytes(bytes_)} in use"
        elif bytes_ == largest > 0:
            look, title = "pool-hole", f"{title}, the largest free chunk"
        where = f": {bytes_:,} bytes at {first.address:#x}"
        canvas.draw(first.address - start, bytes_, look, title + where)


def _bytes_of(chunks: Sequence[DumpedChunk]) -> int:
    return sum(chunk.size_bytes for chunk in chunks)
