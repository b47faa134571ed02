"""An allocator's regions to scale: rows of equal bytes, each chunk where its address is.

The pool is cut into rows as a text is into lines, so that a chunk of a thousandth still shows. A request
that failed is drawn to the same scale: it can be seen that it fits into no hole, or into none but all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.units import format_bytes
from analyzer.oom.failure_case import OomCase
from analyzer.oom.log_records import Piece
from analyzer.oom.occupied import pieces_in_order

WIDTH: Final = 1000
"""Units of a row."""
_ROWS: Final = 24  # in which the whole pool is drawn
_HEIGHT: Final = 16  # units of a row
_STEP: Final = 20  # units from row to row
_REGION_GAP: Final = 8  # units
_LEAST: Final = 0.35
"""Units under which neighbours of one kind are drawn as one."""
_MOST_BOXES: Final = 12_000  # drawn: the widest
_KINDS: Final = 3  # sizes that have a look of their own
_WORTH: Final = 0.03
"""Share of what is in use from which a size has a look of its own."""
_MOST_REGIONS: Final = 60  # drawn: the largest


@dataclass(frozen=True, slots=True)
class MapBox:
    """One rectangle: where, of which look, and what it says when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    look: str
    title: str


@dataclass(frozen=True, slots=True)
class PoolMap:
    """A pool as a drawing.

    Attributes:
        height: Units.
        boxes: What is drawn, in order.
        row_bytes: Bytes that a row stands for.
        legend: Looks that occur, and what each is.
        is_whole: Whether every chunk is drawn.
        note: What is not drawn, in words.
    """

    height: int
    boxes: list[MapBox]
    row_bytes: int
    legend: list[tuple[str, str]]
    is_whole: bool
    note: str


def pool_map(case: OomCase) -> PoolMap | None:
    """Draw a failure's pool; None where the log has no chunks."""
    runs = pieces_in_order(case.mishap.dump)
    total = sum(piece.size_bytes for run in runs for piece in run)
    if not total:
        return None
    shown = sorted(runs, key=lambda run: -_bytes_of(run))[:_MOST_REGIONS]
    asked = case.asked.rounded.middle if case.asked is not None else 0
    row_bytes = max(-(-max(total, 1) // _ROWS), 1)
    looks = _looks(case)
    boxes: list[MapBox] = []
    top = 4.0
    for place, run in enumerate(shown):
        boxes += _region(run, place, top, row_bytes, looks, case)
        top += _rows_of(_bytes_of(run), row_bytes) * _STEP + _REGION_GAP
    if asked:
        top += 6
        boxes += _asked_boxes(asked, top, row_bytes)
        top += min(_rows_of(asked, row_bytes), _ROWS) * _STEP
    note = f"One row is {format_bytes(row_bytes)}."
    if len(shown) < len(runs):
        note += f" The {len(runs) - len(shown)} smallest regions are not drawn."
    if len(boxes) > _MOST_BOXES:
        note += f" {len(boxes) - _MOST_BOXES:,} small chunks are not drawn."
        boxes = sorted(boxes, key=lambda box: -box.width)[:_MOST_BOXES]
    return PoolMap(int(top) + 6, boxes, row_bytes, _legend(case, looks), case.state.is_whole, note)


def _looks(case: OomCase) -> dict[int, str]:
    """Give the sizes that hold most a look of their own, the asked size the first."""
    looks: dict[int, str] = {}
    for crowd in sorted(case.crowds, key=lambda crowd: (not crowd.is_asked, -crowd.total_bytes)):
        if len(looks) == _KINDS:
            break
        if not crowd.is_asked and crowd.total_bytes < _WORTH * (case.in_use_bytes or 0):
            continue
        looks[crowd.size_bytes] = "asked-size" if crowd.is_asked else f"size-{len(looks)}"
    return looks


def _legend(case: OomCase, looks: dict[int, str]) -> list[tuple[str, str]]:
    counts = {crowd.size_bytes: crowd.count for crowd in case.crowds}
    rows = [
        (
            look,
            f"{counts[size]:,} × {format_bytes(size)}"  # noqa: RUF001 - a sign of multiplication
            + (", the asked size" if look == "asked-size" else ""),
        )
        for size, look in looks.items()
    ]
    return [*rows, ("used", "other chunks in use"), ("hole", "the largest hole"), ("free", "free")]


def _region(
    run: Sequence[Piece],
    place: int,
    top: float,
    row_bytes: int,
    looks: dict[int, str],
    case: OomCase,
) -> Iterator[MapBox]:
    """Yield a region's ground and its chunks, neighbours too small to see drawn as one."""
    start, size = run[0].address, _bytes_of(run)
    hole = case.state.largest_hole
    largest = hole.low if hole is not None and case.state.is_whole else -1
    title = f"region {place + 1}: {format_bytes(size)} at {start:#x}"
    yield from _boxes(0, size, top, row_bytes, "free", title)
    small: list[Piece] = []
    for piece in run:
        if piece.size_bytes / row_bytes * WIDTH < _LEAST and piece.is_used:
            small.append(piece)
            if small[-1].address - small[0].address < row_bytes / WIDTH * _LEAST:
                continue
        yield from _small(small, start, top, row_bytes)
        if piece in small:
            small = []
            continue
        small = []
        offset = piece.address - start
        if piece.is_used:
            look = looks.get(piece.size_bytes, "used")
            words = "in use"
        else:
            is_largest = piece.size_bytes == largest and largest > 0
            look, words = (
                ("hole", "free, the largest hole") if is_largest else ("free-piece", "free")
            )
        shown = format_bytes(piece.size_bytes)
        title = f"{shown} {words}: {piece.size_bytes:,} bytes at {piece.address:#x}"
        yield from _boxes(offset, piece.size_bytes, top, row_bytes, look, title)
    yield from _small(small, start, top, row_bytes)


def _small(pieces: Sequence[Piece], start: int, top: float, row_bytes: int) -> Iterator[MapBox]:
    if not pieces:
        return
    size = sum(piece.size_bytes for piece in pieces)
    title = f"{len(pieces):,} small chunks in use, {format_bytes(size)}"
    yield from _boxes(pieces[0].address - start, size, top, row_bytes, "used", title)


def _asked_boxes(asked: int, top: float, row_bytes: int) -> Iterator[MapBox]:
    title = f"what was asked for, to the same scale: {format_bytes(asked)} ({asked:,} bytes)"
    yield from _boxes(0, min(asked, _ROWS * row_bytes), top, row_bytes, "asked", title)


def _boxes(
    offset: int, size: int, top: float, row_bytes: int, look: str, title: str
) -> Iterator[MapBox]:
    """Yield the rectangles of a stretch of bytes: one for each row that it touches."""
    end = offset + size
    while offset < end:
        row, within = divmod(offset, row_bytes)
        taken = min(end - offset, row_bytes - within)
        width = taken / row_bytes * WIDTH
        gap = 0.6 if width > 3 and look != "free" else 0.0
        yield MapBox(
            round(within / row_bytes * WIDTH, 2),
            top + row * _STEP,
            round(max(width - gap, _LEAST), 2),
            _HEIGHT,
            look,
            title,
        )
        offset += taken


def _bytes_of(run: Sequence[Piece]) -> int:
    return sum(piece.size_bytes for piece in run)


def _rows_of(size: int, row_bytes: int) -> int:
    return max(-(-size // row_bytes), 1)
