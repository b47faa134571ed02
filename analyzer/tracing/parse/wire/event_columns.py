"""Columns of the events and statistics of a trace's lines, read block by block.

A line may hold millions of events; blocks keep the memory constant. Field numbers are of ``xspace``.
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
    FieldColumns,
    Positions,
    WireBlock,
    WireError,
    read_field,
    read_varint,
)

_BLOCK_BYTES: Final = 1 << 22
_EVENT_KEY: Final = 4 << 3 | BYTES
_STAT_KEY: Final = 4 << 3 | BYTES
_TIMESTAMP_KEY: Final = 3 << 3 | VARINT
_NAME_KEY: Final = 1 << 3 | VARINT
_STAT_KEYS: Final = (
    _NAME_KEY,
    *(2 << 3 | EIGHT_BYTES, 3 << 3 | VARINT, 4 << 3 | VARINT),  # double, unsigned, signed
    7 << 3 | VARINT,  # key of a text
)
_TEXT_KEY: Final = 5 << 3 | BYTES


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
        """Return the key of the name of each chosen statistic and -1 for others, shape ``(m,)``."""
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
        event = self.stat_event[chosen]
        columns = {key: np.zeros(len(event), np.int64) for key in _STAT_KEYS}
        text_start, text_end = np.zeros((2, len(event)), np.int64)
        for rows, fields in _walk_messages(
            self.block, self.stat_start[chosen], self.stat_end[chosen]
        ):
            for key, column in columns.items():
                here = fields.key == key
                if here.any():
                    column[rows[here]] = fields.value[here]
            here = fields.key == _TEXT_KEY
            if here.any():
                text_start[rows[here]], text_end[rows[here]] = fields.start[here], fields.end[here]
        name_id, real, unsigned, integer, ref = columns.values()
        integer = np.where(integer != 0, integer, unsigned)
        return StatColumns(
            event, name_id, integer, real.view(np.float64), ref, text_start, text_end
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
    """Reader of one line of a plane, at byte ``at``.

    ``timestamp_ns``, the line's time, is complete after all blocks are read.
    """

    def __init__(self, source: ByteSource, start: int, end: int) -> None:
        """Read the line between ``start`` and ``end``."""
        self._source, self._end = source, end
        self.timestamp_ns, self.at = 0, start

    def blocks(self) -> Iterator[EventBlock]:
        """Yield the line's events in blocks."""
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
                yield _read_events(WireBlock(window), np.array(starts), np.array(ends))

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
                    key, value, _, until = read_field(window, at)
                    if until > limit:
                        break
                    if key == _TIMESTAMP_KEY:
                        self.timestamp_ns = value - (value >> 63 << 64)  # its bits, signed
                    at = until
            except (WireError, IndexError):  # the end of the window, or no field
                if limit - at > 32:
                    raise WireError from None
                break
        return starts, ends, at


def _walk_messages(
    block: WireBlock, start: Positions, end: Positions
) -> Iterator[tuple[Positions, FieldColumns]]:
    """Yield the next field of each message that has one, with its row, until all are read."""
    rows = np.flatnonzero(start < end)
    at, until = start[rows], end[rows]
    while len(rows):
        fields = block.next_fields(at)
        if (fields.end > until).any():
            raise WireError
        yield rows, fields
        more = fields.end < until
        rows, at, until = rows[more], fields.end[more], until[more]


def _read_events(block: WireBlock, start: Positions, end: Positions) -> EventBlock:
    name, offset, duration = columns = np.zeros((3, len(start)), np.int64)
    none = np.zeros(0, np.int64)
    stats: list[tuple[Positions, Positions, Positions]] = [(none, none, none)]
    for rows, fields in _walk_messages(block, start, end):
        is_stat = fields.key == _STAT_KEY
        if is_stat.all():
            stats.append((rows, fields.start, fields.end))
            continue
        for number, column in enumerate(columns, 1):
            here = fields.key == number << 3 | VARINT
            column[rows[here]] = fields.value[here]
        stats.append((rows[is_stat], fields.start[is_stat], fields.end[is_stat]))
    event, first, last = (np.concatenate(part) for part in zip(*stats, strict=True))
    return EventBlock(block, start, end, name, offset, duration, event, first, last)
