"""An allocator's regions drawn to scale, as rows of equal bytes.

The pool is cut into rows like a text into lines, so that a chunk of a thousandth is still visible. The
failed request is drawn below to the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from analyzer.model.units import format_bytes
from analyzer.oom.dumped_state import regions_in_order
from analyzer.oom.failure_case import OomCase
from analyzer.oom.log_records import DumpedChunk
from analyzer.report.render.sections import Drawing

_WIDTH: Final = 1000  # units of a row
_ROWS: Final = 24  # rows for the whole pool
_HEIGHT: Final = 16  # units of a row
_STEP: Final = 20  # units from row to row
_REGION_GAP: Final = 8  # units
_LEAST: Final = 0.35  # units; smaller neighbours of one kind are drawn as one
_GAP: Final = 0.6  # units between chunks wider than three units
_MOST_BOXES: Final = 12_000  # the widest are drawn
_MOST_LOOKS: Final = 3  # sizes with a colour of their own
_LEAST_SHARE: Final = 0.03  # of the bytes in use, for a colour of its own
_MOST_REGIONS: Final = 60  # the largest are drawn


@dataclass(frozen=True, slots=True)
class _Box:
    """One rectangle with its CSS class, and the title for the pointer."""

    x: float
    y: float
    width: float
    look: str
    title: str

    def __html__(self) -> str:
        return Markup(
            '<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>'
        ).format(self.x, self.y, self.width, _HEIGHT, self.look, self.title)


def draw_pool(case: OomCase) -> Drawing | None:
    """Return a failure's pool as a drawing; None if the log lists no chunks."""
    regions = regions_in_order(case.failure.dump)
    total = sum(map(_bytes_of, regions))
    if not total:
        return None
    row_bytes = max(-(-total // _ROWS), 1)
    looks = _looks(case)
    largest = sorted(regions, key=lambda region: -_bytes_of(region))[:_MOST_REGIONS]
    boxes: list[_Box] = []
    top = 4
    for place, region in enumerate(largest, start=1):
        boxes += _draw_region(region, place, top, row_bytes, looks, case)
        top += _rows_of(_bytes_of(region), row_bytes) * _STEP + _REGION_GAP
    request = case.request.rounded.middle if case.request is not None else 0
    if request:
        top += 6
        title = f"the request, to the same scale: {format_bytes(request)} ({request:,} bytes)"
        drawn = min(request, _ROWS * row_bytes)
        boxes += _draw_bytes(0, drawn, top, row_bytes, "pool-request", title)
        top += min(_rows_of(request, row_bytes), _ROWS) * _STEP
    note = f"One row is {format_bytes(row_bytes)}."
    if len(largest) < len(regions):
        note += f" The {len(regions) - len(largest)} smallest regions are not drawn."
    if len(boxes) > _MOST_BOXES:
        note += f" {len(boxes) - _MOST_BOXES:,} small chunks are not drawn."
        boxes = sorted(boxes, key=lambda box: -box.width)[:_MOST_BOXES]
    if not case.state.is_complete:
        note += " The chunk list is incomplete."
    caption = "The pool when the request failed, to scale"
    svg = Markup(
        '<svg class="pool" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="Chunks of the allocator by address">{}</svg>'
    ).format(_WIDTH, top + 6, Markup("").join(boxes))
    return Drawing(caption, svg, note, tuple(_legend(case, looks)))


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
    region: Sequence[DumpedChunk],
    place: int,
    top: int,
    row_bytes: int,
    looks: dict[int, str],
    case: OomCase,
) -> Iterator[_Box]:
    """Yield a region's background and its chunks; tiny neighbours in use are drawn as one."""
    start, size = region[0].address, _bytes_of(region)
    hole = case.state.largest_hole
    largest = hole.low if hole is not None and case.state.is_complete else 0
    title = f"region {place}: {format_bytes(size)} at {start:#x}"
    yield from _draw_bytes(0, size, top, row_bytes, "pool-free", title)
    least_bytes = row_bytes / _WIDTH * _LEAST
    tiny: list[DumpedChunk] = []
    for chunk in region:
        if chunk.size_bytes < least_bytes and chunk.is_used:
            tiny.append(chunk)
            if chunk.address - tiny[0].address < least_bytes:
                continue
            yield from _draw_tiny(tiny, start, top, row_bytes)
            tiny = []
            continue
        yield from _draw_tiny(tiny, start, top, row_bytes)
        tiny = []
        if chunk.is_used:
            look, words = looks.get(chunk.size_bytes, "pool-used"), "in use"
        elif chunk.size_bytes == largest > 0:
            look, words = "pool-hole", "free, the largest free chunk"
        else:
            look, words = "pool-chunk", "free"
        shown = format_bytes(chunk.size_bytes)
        title = f"{shown} {words}: {chunk.size_bytes:,} bytes at {chunk.address:#x}"
        offset = chunk.address - start
        yield from _draw_bytes(offset, chunk.size_bytes, top, row_bytes, look, title)
    yield from _draw_tiny(tiny, start, top, row_bytes)


def _draw_tiny(
    chunks: Sequence[DumpedChunk], start: int, top: int, row_bytes: int
) -> Iterator[_Box]:
    if chunks:
        size = _bytes_of(chunks)
        title = f"{len(chunks):,} small chunks in use, {format_bytes(size)}"
        offset = chunks[0].address - start
        yield from _draw_bytes(offset, size, top, row_bytes, "pool-used", title)


def _draw_bytes(
    offset: int, size: int, top: int, row_bytes: int, look: str, title: str
) -> Iterator[_Box]:
    """Yield the rectangles of a range of bytes: one for each row that it touches."""
    end = offset + size
    while offset < end:
        row, within = divmod(offset, row_bytes)
        taken = min(end - offset, row_bytes - within)
        width = taken / row_bytes * _WIDTH
        gap = _GAP if width > 3 and look != "pool-free" else 0.0
        x = round(within / row_bytes * _WIDTH, 2)
        yield _Box(x, top + row * _STEP, round(max(width - gap, _LEAST), 2), look, title)
        offset += taken


def _bytes_of(chunks: Sequence[DumpedChunk]) -> int:
    return sum(chunk.size_bytes for chunk in chunks)


def _rows_of(size: int, row_bytes: int) -> int:
    return max(-(-size // row_bytes), 1)
