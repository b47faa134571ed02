"""The document of a log as sections for the terminal and the page; it computes no figures.

The page also draws the pool to scale: it is cut into rows like a text into lines, so that a chunk of a
thousandth is still visible. The failed request is drawn below to the same scale.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
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
from analyzer.oom.dumped_state import chunks_in_order, read_texts
from analyzer.oom.failure_case import OomCase
from analyzer.oom.log_records import DumpedChunk
from analyzer.report.render.sections import (
    COLUMNS,
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
_NAME: Final = TableColumn("", least=9)
_SIZE: Final = TableColumn("size", "bytes")
_FOOTER: Final = (
    "Sizes are exact if the log lists the allocator's chunks, else as precise as printed there."
)


def build_sections(document: OomDocument, cases: Sequence[OomCase] = ()) -> Document:
    """Return the document as sections; ``cases`` adds a drawing of each failure's pool."""
    failures = document.failures
    sections: list[Section] = []
    for place, failure in enumerate(failures[:_MOST_FAILURES]):
        sections.append(_lead_section(failure, place, len(failures)))
        sections += _parts(failure, cases[place] if place < len(cases) else None)
    if len(failures) > _MOST_FAILURES:
        others = _other_failures(failures[_MOST_FAILURES:], document.failures_not_shown)
        sections.append(Section("The other failures", (others,)))
    notes, next_command = document.notes, document.next_command or ""
    if "TARGET" in next_command:
        card = ", and CARD is your card, such as t4" * ("CARD" in next_command)
        notes += (
            f"In the next command, TARGET is your model, such as train.py:build_model{card}.",
        )
    if notes:
        sections.append(Section("", tuple(map(Paragraph, notes))))
    model = f", matched with {document.matched_with}" if document.matched_with else ""
    return Document(
        document.log,
        document.headline,
        tone="bad" if failures else "strong",
        subtitle=f"{document.lines:,} line{'s' * (document.lines != 1)}{model}",
        badge="out of memory" if failures else "",
        sections=tuple(sections),
        footer=_FOOTER if any(failure.sizes for failure in failures) else "",
        next_command=next_command,
    )


def _lead_section(failure: OomFailure, place: int, count: int) -> Section:
    verdict = failure.verdict
    heading = "The failure" if count == 1 else f"Failure {place + 1} of {count}"
    reports = "" if failure.told == 1 else f", reported {failure.told} times"
    process = f", {failure.process}" if failure.process else ""
    lead: list[Block] = [Paragraph(verdict.title, "warning")] if count > 1 else []
    lead += [Paragraph(reason) for reason in verdict.reasons]
    lead.append(Table((_NAME, TableColumn("", "whole", least=20)), tuple(_facts(failure))))
    cause = verdict.id.replace("cannot-tell", "cause unknown")
    note = f"line {failure.line:,}{reports}{process} · {cause}"
    return Section(heading, tuple(lead), note=note)


def _parts(failure: OomFailure, case: OomCase | None) -> Iterator[Section]:
    """Yield the parts of one failure: advice, drawing, figures, contents of the pool, its line."""
    if failure.remedies:
        advice: list[Block] = []
        for remedy in failure.remedies:
            because = Paragraph(remedy.because, "muted", "  ")
            advice += [Paragraph(remedy.action, mark="- "), because]
        yield Section("What to do", tuple(advice), level=2)
    drawing = draw_pool(case) if case is not None else None
    if drawing is not None:
        yield Section("", (drawing,), level=2)
    if figures := tuple(_figures(failure)):
        yield Section("Figures", (Table(COLUMNS["oom-figures"], figures),), level=2)
    total = sum(row.size_bytes for row in failure.holders)
    if len(failure.holders) > 1 and total:
        rows = tuple(
            (row.who, row.size_bytes, *(row.size_bytes / total,) * 2) for row in failure.holders
        )
        yield Section("Who holds it", (Table(COLUMNS["oom-holders"], rows),), level=2)
    stories = tuple(map(Paragraph, (*failure.stories, *failure.matched)))
    if stories or failure.sizes:
        sizes = (_sizes(failure),) if failure.sizes else ()
        yield Section("Chunks in use by size", (*stories, *sizes), level=2)
    if failure.compiled is not None:
        yield Section("Buffers of the program", _xla_tables(failure.compiled), level=2)
    if failure.tensors_by_node:
        nodes = tuple((row.size_bytes, row.who) for row in failure.tensors_by_node[:_MOST_ROWS])
        table = Table((_SIZE, TableColumn("node", "path", least=20)), nodes)
        yield Section("Live tensors by node", (table,), level=2)
    if failure.verdict.missing:
        lines = tuple(Paragraph(line, "muted", "- ") for line in failure.verdict.missing)
        yield Section("The log lacks", lines, level=2)
    if failure.words and case is not None:
        yield Section("The line itself", (Code(failure.words),), level=2, is_folded=True)


def _facts(failure: OomFailure) -> Iterator[tuple[str, str]]:
    asked = failure.asked
    if asked is not None:
        yield "request", _request_words(asked)
        if asked.is_exact and asked.rounded_bytes != asked.requested_bytes:
            yield "rounded up", f"{asked.rounded_bytes:,} bytes"
        yield "size from", asked.basis
        if asked.shape is not None:
            yield "shape", f"[{', '.join(map(str, asked.shape))}] {asked.dtype or ''}".strip()
    for name, label in read_texts()["fact"].items():
        text = getattr(failure, name)
        if text and (label == name or text != failure.op):
            yield label, text
    if failure.card is not None and (failure.card.name or failure.card.total_bytes):
        yield "card", _card_words(failure.card)


def _request_words(asked: AskedFor) -> str:
    size = asked.requested_bytes
    if asked.is_exact:
        return f"{format_bytes(size)} ({size:,} bytes)"
    about = "" if asked.high_bytes - asked.low_bytes < 256 else "about "
    return f"{about}{format_bytes(size)} ({asked.low_bytes:,} to {asked.high_bytes:,} bytes)"


def _card_words(card: OomCard) -> str:
    source = "{} according to the catalogue" if card.is_from_catalogue else "{}"
    sizes = (
        (card.total_bytes or None, source),
        (card.free_bytes, "{} free at the failure"),
    )
    parts = [words.format(format_bytes(size)) for size, words in sizes if size is not None]
    return ", ".join([card.name or "a card", *parts])


def _figures(failure: OomFailure) -> Iterator[tuple[str, int, Cell]]:
    for name, label in read_texts()["figure"].items():
        size = getattr(failure, name)
        if size is None or (name == "left_bytes" and failure.free_bytes is not None):
            continue
        ends = failure.ranges.get(name)
        exact = f"{size:,}" if ends is None else f"{ends[0]:,} to {ends[1]:,}"
        yield label, size, Cell(exact, "muted")


def _sizes(failure: OomFailure) -> Table:
    columns = COLUMNS["oom-sizes"]
    count = len(columns) if any(row.names for row in failure.sizes) else len(columns) - 1
    rows = []
    for row in failure.sizes[:_MOST_ROWS]:
        asked = "requested size" if row.is_asked else ""
        cells = (row.count, row.size_bytes, row.total_bytes, asked, "".join(row.names[:1]))
        rows.append(cells[:count])
    others, caption = failure.sizes[_MOST_ROWS:], ""
    if others:
        chunks = sum(row.count for row in others)
        total = format_bytes(sum(row.total_bytes for row in others))
        caption = f"{chunks:,} chunks of {len(others):,} other sizes hold {total}; see the JSON."
    return Table(columns[:count], tuple(rows), caption)


def _xla_tables(plan: OomPlan) -> tuple[Table, Table]:
    shape, of = TableColumn("shape", least=14, rank=1), TableColumn("buffer of", "path", least=20)
    rows = ((row.size_bytes, row.shape, row.operator or row.label) for row in plan.buffers)
    return (
        Table((TableColumn("part"), _SIZE), tuple(plan.sums_bytes.items())),
        Table((_SIZE, shape, of), tuple(rows)[:_MOST_ROWS]),
    )


def _other_failures(failures: Sequence[OomFailure], uncounted: int) -> Table:
    rows = []
    for one in failures[:_MOST_ROWS]:
        size = one.asked.requested_bytes if one.asked else None
        rows.append((one.line, size, one.verdict.id, one.op or one.allocator))
    left = len(failures) - _MOST_ROWS + uncounted
    return Table(COLUMNS["oom-failures"], tuple(rows), f"{left:,} more" if left > 0 else "")


_WIDTH: Final = 1000  # units of a row
_ROWS: Final = 24  # rows for the whole pool
_HEIGHT: Final = 16  # units of a row
_STEP: Final = 20  # units from row to row
_TOP: Final = 4  # units above the first row
_GAP: Final = 0.6  # units between chunks wider than three units
_MOST_LOOKS: Final = 3  # sizes with a colour of their own
_LEAST_SHARE: Final = 0.03  # of the bytes in use, for a colour of its own

_RECT: Final = Markup(
    '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
)
_SVG: Final = Markup(
    '<svg class="pool" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
    'aria-label="Chunks of the allocator by address">{}</svg>'
)


def draw_pool(case: OomCase) -> Drawing | None:
    """Return a failure's pool as a drawing, its regions one after the other; None without chunks."""
    chunks = chunks_in_order(case.failure.dump)
    *starts, total = accumulate((chunk.size_bytes for chunk in chunks), initial=0)
    if not total:
        return None
    row_bytes = -(-total // _ROWS)
    tiny_bytes = row_bytes / _WIDTH  # smaller neighbours are drawn as one
    looks, hole = _looks(case), case.state.largest_hole
    boxes = list(_draw(0, total, row_bytes, "pool-free", f"the pool: {format_bytes(total)}"))

    def group_of(placed: tuple[int, DumpedChunk]) -> int:
        start, chunk = placed
        return -1 - int(start / tiny_bytes) if chunk.size_bytes < tiny_bytes else start

    for _, group in groupby(zip(starts, chunks, strict=True), group_of):
        (start, first), *more = group
        size = first.size_bytes + sum(chunk.size_bytes for _, chunk in more)
        look, title = "pool-chunk", f"{format_bytes(size)} free"
        if more:
            look, title = "pool-used", f"{len(more) + 1:,} small chunks, {format_bytes(size)}"
        elif first.is_used:
            look, title = looks.get(size, "pool-used"), f"{format_bytes(size)} in use"
        elif case.state.is_complete and hole is not None and size == hole.low:
            look, title = "pool-hole", f"{title}, the largest free chunk"
        title += f": {size:,} bytes at {first.address:#x}"
        boxes += _draw(start, size, row_bytes, look, title)
    end = total
    request = case.request.rounded.middle if case.request is not None else 0
    if request:
        title = f"the request, to the same scale: {format_bytes(request)} ({request:,} bytes)"
        start = (-(-total // row_bytes) + 1) * row_bytes  # an empty row in between
        end = start + min(request, total)
        boxes += _draw(start, end - start, row_bytes, "pool-request", title)
    note = f"One row is {format_bytes(row_bytes)}."
    if not case.state.is_complete:
        note += " The chunk list is incomplete."
    height = 2 * _TOP + -(-end // row_bytes) * _STEP
    svg = _SVG.format(_WIDTH, height, Markup("").join(boxes))
    caption = "The pool when the request failed, to scale"
    return Drawing(caption, svg, note, tuple(_legend(case, looks)))


def _draw(offset: int, size: int, row_bytes: int, look: str, title: str) -> Iterator[Markup]:
    """Yield a range of bytes: one rectangle for each row that it touches."""
    end = offset + size
    while offset < end:
        row, within = divmod(offset, row_bytes)
        taken = min(end - offset, row_bytes - within)
        width = taken / row_bytes * _WIDTH
        if width > 3 and look != "pool-free":
            width -= _GAP
        x, width = round(within / row_bytes * _WIDTH, 2), round(max(width, 1), 2)
        yield _RECT.format(x, _TOP + row * _STEP, width, _HEIGHT, look, title)
        offset += taken


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
