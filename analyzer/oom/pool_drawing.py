"""A drawing of the pool to scale, cut into rows like a text into lines.

So a chunk of a thousandth is still visible. The failed request is drawn below to the same scale.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from markupsafe import Markup

from analyzer.model.units import format_bytes
from analyzer.oom.failures import LoggedFailure
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

    marks: list[Markup] = []

    for box in boxes:
        marks += _draw(row_bytes, *box)

    note = f"One row is {format_bytes(row_bytes)}."

    if not failure.is_complete:
        note += " The chunk list is incomplete."

    height = 2 * _TOP + -(-end // row_bytes) * _STEP
    svg = _SVG.format(_WIDTH, height, Markup("").join(marks))
    caption = "The pool when the request failed, to scale"

    return frame(caption, svg, _LEGEND, note)


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

            if is_used:
                look = "pool-same" if size == asked_bytes else "pool-used"
            else:
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
        yield _RECT.format(x, y, round(max(width, 1), 2), _HEIGHT, look, title)
        offset += taken
