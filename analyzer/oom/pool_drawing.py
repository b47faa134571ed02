"""An allocator's regions drawn to scale, as rows of equal bytes.

The pool is cut into rows like a text into lines, so that a chunk of a thousandth is still visible. The
failed request is drawn below to the same scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
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
_LEAST: Final = 0.35  # units; smaller neighbours in use are drawn as one
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
    """Draw a region's background and its chunks; tiny neighbours in use become one rectangle."""
    start, size = region[0].address, _bytes_of(region)
    hole = case.state.largest_hole
    largest = hole.low if hole is not None and case.state.is_complete else 0
    canvas.draw(0, size, "pool-free", f"region {place}: {format_bytes(size)} at {start:#x}")
    least_bytes = max(canvas.row_bytes / _WIDTH * _LEAST, 1)

    def group_of(chunk: DumpedChunk) -> int:
        is_tiny = chunk.is_used and chunk.size_bytes < least_bytes
        return -1 - int((chunk.address - start) / least_bytes) if is_tiny else chunk.address

    for _, same in groupby(region, group_of):
        chunks = list(same)
        first, bytes_ = chunks[0], _bytes_of(chunks)
        look, title = "pool-chunk", f"{format_bytes(bytes_)} free"
        if len(chunks) > 1:
            look, title = (
                "pool-used",
                f"{len(chunks):,} small chunks in use, {format_bytes(bytes_)}",
            )
        elif first.is_used:
            look, title = looks.get(bytes_, "pool-used"), f"{format_bytes(bytes_)} in use"
        elif bytes_ == largest > 0:
            look, title = "pool-hole", f"{title}, the largest free chunk"
        where = f": {bytes_:,} bytes at {first.address:#x}"
        canvas.draw(first.address - start, bytes_, look, title + where)


def _bytes_of(chunks: Sequence[DumpedChunk]) -> int:
    return sum(chunk.size_bytes for chunk in chunks)
