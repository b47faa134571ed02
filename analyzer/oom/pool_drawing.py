"""A drawing of the pool to scale, cut into rows like a text into lines.

So a chunk of a thousandth is still visible. The failed request is drawn below to the same scale.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from markupsafe import Markup

from analyzer.model.units import format_bytes
from analyzer.oom.failures import Chunk, LoggedFailure
from analyzer.report.render.charts import frame

_WIDTH: Final = 1000  # units of a row
_ROWS: Final = 24  # rows for the whole pool
_HEIGHT: Final = 16  # units of a row
_STEP: Final = 20  # units from row to row
_TOP: Final = 4  # units above the first row
_GAP: Final = 0.6  # units between chunks wider than three units
_LEGEND: Final = (
    ("pool-same", "chunks in use of the requested size"),
    ("pool-used", "other chunks in use"),
    ("pool-hole", "the largest free chunk"),
    ("pool-free", "free"),
    ("pool-request", "the request, below the pool"),
)

_RECT: Final = Markup(
    '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
)
_SVG: Final = Markup(
    '<svg class="pool" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
    'aria-label="Chunks of the allocator by address">{}</svg>'
)


def draw_pool(failure: LoggedFailure) -> Markup | None:
    """Return a failure's pool as a drawing, its regions one after the other; None without chunks."""
    chunks = sorted(failure.chunks)
    total = sum(chunk.size_bytes for chunk in chunks)
    if not total:
        return None

    row_bytes = -(-total // _ROWS)
    boxes = list(
        _draw(0, total, row_bytes, "pool-free", f"the pool: {format_bytes(total)}")
    )
    start = 0

    for size, look, title in _merge_small(failure, chunks, row_bytes // _WIDTH):
        boxes += _draw(start, size, row_bytes, look, title)
        start += size

    if failure.request is not None:
        size = failure.request.rounded_bytes
        title = f"the request, to the same scale: {format_bytes(size)} ({size:,} bytes)"
        start = (-(-total // row_bytes) + 1) * row_bytes  # an empty row in between
        boxes += _draw(start, min(size, total), row_bytes, "pool-request", title)
        start += min(size, total)

    note = f"One row is {format_bytes(row_bytes)}."

    if not failure.is_complete:
        note += " The chunk list is incomplete."

    height = 2 * _TOP + -(-start // row_bytes) * _STEP
    svg = _SVG.format(_WIDTH, height, Markup("").join(boxes))
    caption = "The pool when the request failed, to scale"
    return frame(caption, svg, _LEGEND, note)


def _merge_small(
    failure: LoggedFailure, chunks: list[Chunk], tiny_bytes: int
) -> Iterator[tuple[int, str, str]]:
    """Yield size, look and title of each chunk; small neighbours become one."""
    hole = failure.figures.get("largest_hole")
    requested = failure.request.rounded_bytes if failure.request else 0

    for is_tiny, group in groupby(chunks, lambda chunk: chunk.size_bytes < tiny_bytes):
        members = list(group)
        if is_tiny and len(members) > 1:
            size = sum(chunk.size_bytes for chunk in members)
            yield (
                size,
                "pool-used",
                f"{len(members):,} small chunks, {format_bytes(size)}",
            )
            continue

        for chunk in members:
            size = chunk.size_bytes
            look, use = "pool-chunk", "free"
            if chunk.is_used:
                look, use = "pool-used", "in use"
                if size == requested:
                    look = "pool-same"
            elif failure.is_complete and hole is not None and size == hole.low:
                look, use = "pool-hole", "free, the largest free chunk"

            yield (
                size,
                look,
                f"{format_bytes(size)} {use}: {size:,} bytes at {chunk.address:#x}",
            )


def _draw(
    offset: int, size: int, row_bytes: int, look: str, title: str
) -> Iterator[Markup]:
    """Yield a range of bytes: one rectangle for each row that it touches."""
    end = offset + size
    while offset < end:
        row, within = divmod(offset, row_bytes)
        taken = min(end - offset, row_bytes - within)
        width = taken / row_bytes * _WIDTH
        if width > 3 and look != "pool-free":
            width -= _GAP

        x, y = round(within / row_bytes * _WIDTH, 2), _TOP + row * _STEP
        yield _RECT.format(x, y, round(max(width, 1), 2), _HEIGHT, look, title)
        offset += taken
