"""Columns of the events and statistics of a trace's lines, read block by block.

A line may hold millions of events. Blocks of some megabytes keep the memory constant. Field numbers are
those of ``xspace``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from analyzer.tracing.parse.wire.wire_fields import (
    BYTES,
    EIGHT_BYTES,
    VARINT,
    ByteSource,
    Positions,
    WireBlock,
    WireError,
    read_varint,
    signed,
)

_BLOCK_BYTES: Final = 1 << 22
_EVENT_KEY: Final = 4 << 3 | BYTES
_NAME_KEY: Final = 1 << 3 | VARINT
_TIMESTAMP_KEY: Final = 3 << 3 | VARINT


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Some events of one line; arrays of shape ``(n,)``, in the order of the file."""

    block: WireBlock
    start: Positions
    end: Positions
    name_id: Positions  # key of its name among the plane's event names
    offset_ps: Positions  # its time after the line's, in picoseconds
    duration_ps: Positions
    stat_event: Positions  # the event of each statistic, shape ``(m,)``
    stat_start: Positions  # position of the statistic, shape ``(m,)``
    stat_end: Positions

    def content(self, row: int) -> bytes:
        """Return the bytes of one event."""
        return self.block.text(int(self.start[row]), int(self.end[row]))

    def stat_names(self, chosen: npt.NDArray[np.bool_]) -> Positions:
        """Return the key of the name of each chosen statistic and -1 for others, shape ``(m,)``.

        Raises:
            WireError: One of them is no message.
        """
        names = np.full(len(chosen), -1, np.int64)
        at, until = self.stat_start[chosen], self.stat_end[chosen]
        if (at < until).all():
            fields = self.block.next_fields(at)
            if (fields.key == _NAME_KEY).all() and (fields.end <= until).all():
                names[chosen] = fields.value
                return names
        names[chosen] = self.stats(chosen).name_id
        return names

    def stats(self, chosen: npt.NDArray[np.bool_]) -> StatColumns:
        """Return the statistics in a mask of shape ``(m,)``; raise a WireError if one is no message."""
        return _stats(
            self.block,
            self.stat_event[chosen],
            self.stat_start[chosen],
            self.stat_end[chosen],
        )


@dataclass(frozen=True, slots=True)
class StatColumns:
    """Statistics of a block's events, arrays of shape ``(n,)``."""

    event: Positions  # the event of the block that it belongs to
    name_id: Positions  # key of its name among the plane's statistics
    integer: Positions  # its value as signed 64-bit integer, 0 for none
    real: npt.NDArray[np.float64]  # its value as float, 0 for none
    ref: Positions  # key of the text that it refers to, 0 for none
    text_start: Positions
    text_end: Positions


class LineReader:
    """Reader of one line of a plane.

    Attributes:
        timestamp_ns: The line's time, complete after all blocks are read.
        at: Position of the first byte that is not yet read.
    """

    def __init__(self, source: ByteSource, start: int, end: int) -> None:
        """Read the line between ``start`` and ``end``."""
        self._source, self._end = source, end
        self.timestamp_ns, self.at = 0, start

    def blocks(self) -> Iterator[EventBlock]:
        """Yield the line's events in blocks.

        Raises:
            WireError: It is no line, or is truncated.
        """
        room = _BLOCK_BYTES
        while self.at < self._end:
            window = self._source.read(self.at, min(self.at + room, self._end))
            starts, ends, until = self._walk(window)
            if not until:
                if len(window) < room:
                    raise WireError
                room *= 2  # one event is larger than a block
                continue
            self.at, room = self.at + until, _BLOCK_BYTES
            if starts:
                yield _events(WireBlock(window), np.array(starts), np.array(ends))

    def _walk(self, window: bytes) -> tuple[list[int], list[int], int]:
        """Return the positions of the events in a window, and the end of the last whole field."""
        starts: list[int] = []
        ends: list[int] = []
        at, limit = 0, len(window)
        while at < limit:
            try:
                if window[at] == _EVENT_KEY:
                    length, place = window[at + 1], at + 2
                    if length > 127:
                        if window[place] < 128:
                            length, place = length & 127 | window[place] << 7, place + 1
                        else:
                            length, place = read_varint(window, at + 1)
                    if place + length > limit:
                        break
                    starts.append(place)
                    at = place + length
                    ends.append(at)
                else:
                    until = self._other_field(window, at)
                    if until > limit:
                        break
                    at = until
            except (WireError, IndexError):  # the end of the window, or no field
                if limit - at > 32:
                    raise WireError from None
                break
        return starts, ends, at

    def _other_field(self, window: bytes, at: int) -> int:
        """Read a field that is no event; return its end."""
        key, place = read_varint(window, at)
        wire = key & 7
        if not key >> 3 or wire not in (VARINT, EIGHT_BYTES, BYTES, 5):
            raise ValueError("bytes that are no line")
        if wire == VARINT:
            value, place = read_varint(window, place)
            if key == _TIMESTAMP_KEY:
                self.timestamp_ns = signed(value)
            return place
        if wire == BYTES:
            length, place = read_varint(window, place)
            return place + length
        return place + (8 if wire == EIGHT_BYTES else 4)


def _events(block: WireBlock, start: Positions, end: Positions) -> EventBlock:
    """Return the columns of the events at ``start``; each round reads one field of each event."""
    columns = {number: np.zeros(len(start), np.int64) for number in (1, 2, 3)}
    stats: list[tuple[Positions, Positions, Positions]] = []
    rows = np.flatnonzero(start < end)
    at, until = start[rows], end[rows]
    while len(rows):
        fields = block.next_fields(at)
        if (fields.end > until).any():
            raise WireError
        is_stat = fields.key == 4 << 3 | BYTES
        if is_stat.all():
            stats.append((rows, fields.start, fields.end))
        else:
            for number, column in columns.items():
                here = fields.key == number << 3 | VARINT
                column[rows[here]] = fields.value[here]
            stats.append((rows[is_stat], fields.start[is_stat], fields.end[is_stat]))
        more = fields.end < until
        rows, at, until = rows[more], fields.end[more], until[more]
    none = np.zeros(0, np.int64)
    event, first, last = (
        (np.concatenate(part) for part in zip(*stats, strict=True)) if stats else (none,) * 3
    )
    return EventBlock(block, start, end, columns[1], columns[2], columns[3], event, first, last)


def _stats(block: WireBlock, event: Positions, start: Positions, end: Positions) -> StatColumns:
    """Return the columns of the statistics at ``start``."""
    count = len(event)
    integers = {number: np.zeros(count, np.int64) for number in (1, 2, 3, 4, 7)}
    text_start, text_end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    rows = np.flatnonzero(start < end)
    at, until = start[rows], end[rows]
    while len(rows):
        fields = block.next_fields(at)
        if (fields.end > until).any():
            raise WireError
        for number, column in integers.items():
            here = fields.key == number << 3 | (EIGHT_BYTES if number == 2 else VARINT)
            if here.any():
                column[rows[here]] = fields.value[here]
        here = fields.key == 5 << 3 | BYTES
        if here.any():
            text_start[rows[here]], text_end[rows[here]] = fields.start[here], fields.end[here]
        more = fields.end < until
        rows, at, until = rows[more], fields.end[more], until[more]
    return StatColumns(
        event,
        integers[1],
        np.where(integers[4] != 0, integers[4], integers[3]),
        integers[2].view(np.float64),
        integers[7],
        text_start,
        text_end,
    )
