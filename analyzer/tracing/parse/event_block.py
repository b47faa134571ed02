"""Events of a trace's line as columns: many small messages are read with a few array operations.

A field of a message is a key (its number and wire type) and a value: a varint, 8 or 4 bytes, or a length
and bytes. A line may hold millions of events, so it is read in blocks. Field numbers are of ``xspace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

Positions: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[Positions, Positions, Positions, Positions]

# Wire types of protobuf; 3 and 4 are obsolete.
_VARINT = 0
_EIGHT_BYTES = 1
_BYTES = 2
_FOUR_BYTES = 5

_BLOCK_EVENTS = 1 << 16
_PADDING = 16
_ONE = np.uint64(1)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)

_STAT_KEY = 4 << 3 | _BYTES
_TEXT_KEY = 5 << 3 | _BYTES
_NUMBER_KEYS = {
    "name_id": 1 << 3 | _VARINT,
    "real": 2 << 3 | _EIGHT_BYTES,
    "unsigned": 3 << 3 | _VARINT,
    "integer": 4 << 3 | _VARINT,
    "ref": 7 << 3 | _VARINT,
}


@dataclass(frozen=True)
class EventBlock:
    """Some events of one line, in the order of the file; arrays have the shape ``(n,)``."""

    events: Sequence[bytes]
    fields: FieldReader
    name_id: Positions  # key of its name among the plane's event names
    offset_ps: Positions  # its time after the line's, in picoseconds
    duration_ps: Positions
    stat_event: Positions  # the event of each statistic, shape ``(m,)``
    stat_start: Positions  # position of the statistic, shape ``(m,)``
    stat_end: Positions

    def stats(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Positions]:
        """Return columns of the statistics in a mask of shape ``(m,)``.

        ``event`` is the event of the block, ``name_id`` the key of the name; ``integer``, ``real`` (the
        bits of a float) and ``ref`` (key of a text) are the value, 0 for none. A text in the event lies
        from ``text_start`` to ``text_end``.
        """
        event = self.stat_event[chosen]
        names = (*_NUMBER_KEYS, "text_start", "text_end")
        columns = {name: np.zeros(len(event), np.int64) for name in names}
        messages = self.fields.walk(self.stat_start[chosen], self.stat_end[chosen])

        for rows, (key, start, value, end) in messages:
            for name, number in _NUMBER_KEYS.items():
                here = key == number
                if here.any():
                    columns[name][rows[here]] = value[here]

            here = key == _TEXT_KEY
            if here.any():
                columns["text_start"][rows[here]] = start[here]
                columns["text_end"][rows[here]] = end[here]

        columns["integer"] |= columns.pop("unsigned")  # one of them is 0

        return {"event": event, **columns}


def read_blocks(events: Sequence[bytes]) -> Iterator[EventBlock]:
    """Yield the events of a line in blocks; raise a DecodeError if one is no message."""
    for first in range(0, len(events), _BLOCK_EVENTS):
        yield _read_block(events[first : first + _BLOCK_EVENTS])


def _read_block(events: Sequence[bytes]) -> EventBlock:
    end = np.cumsum([len(event) for event in events])
    start = np.append(0, end[:-1])

    fields = FieldReader(b"".join(events))
    numbers = np.zeros((3, len(events)), np.int64)
    stats: list[tuple[Positions, Positions, Positions]] = []

    for rows, (key, at, value, until) in fields.walk(start, end):
        is_stat = key == _STAT_KEY
        stats.append((rows[is_stat], at[is_stat], until[is_stat]))

        if is_stat.all():
            continue

        for number, column in enumerate(numbers, 1):
            here = key == number << 3 | _VARINT
            column[rows[here]] = value[here]

    none = np.zeros(0, np.int64)
    columns = zip((none, none, none), *stats, strict=True)
    stat_columns = [np.concatenate(parts) for parts in columns]

    return EventBlock(events, fields, *numbers, *stat_columns)


class FieldReader:
    """Reads the next field of many messages in one block of bytes."""

    def __init__(self, content: bytes) -> None:
        """Copy ``content`` with padding, so that 8 bytes can be read at each position."""
        self.content = content
        self._bytes = np.zeros(len(content) + _PADDING, np.uint8)
        self._bytes[: len(content)] = np.frombuffer(content, np.uint8)

        words = len(content) + _PADDING - 7
        self._words = np.ndarray((words,), "<u8", buffer=self._bytes, strides=(1,))

    def walk(
        self,
        start: Positions,
        end: Positions,
    ) -> Iterator[tuple[Positions, Columns]]:
        """Yield the next field of each message that has one, with its row, until all are read.

        Columns are key, position of the value, value (the varint, the 8 bytes or the number of bytes)
        and position of the next field.
        """
        rows = np.flatnonzero(start < end)
        at = start[rows]
        until = end[rows]

        while len(rows):
            fields = self._next_fields(at)
            after = fields[3]
            if (after > until).any():
                raise DecodeError

            yield rows, fields

            more = after < until
            rows = rows[more]
            at = after[more]
            until = until[more]

    def _next_fields(self, at: Positions) -> Columns:
        key, start = self._varints(at)
        wire = key & 7
        is_varint = wire == _VARINT
        is_sized = wire == _BYTES
        counted = is_varint | is_sized

        if counted.all():
            value, end = self._varints(start)
        else:
            value = np.zeros(len(at), np.int64)
            end = start.copy()
            value[counted], end[counted] = self._varints(start[counted])

            eight = wire == _EIGHT_BYTES
            four = wire == _FOUR_BYTES

            value[eight] = self._words[start[eight]].view(np.int64)
            end[eight] += 8
            end[four] += 4

            if not (counted | eight | four).all():
                raise DecodeError

        if is_sized.any():
            start = np.where(is_sized, end, start)
            end = np.where(is_sized, end + value, end)

        is_damaged = (key < 8) | (end <= at) | (end > len(self.content))
        if is_damaged.any():
            raise DecodeError

        return key, start, value, end

    def _varints(self, at: Positions) -> tuple[Positions, Positions]:
        """Return the varint at each position, as int64 with its bits, and its end.

        Most varints are single bytes. Otherwise the first of eight bytes without its high bit ends the
        number, and groups of seven bits are joined pairwise. A longer one has one or two more bytes.
        """
        first = self._bytes[at]
        if (first < 128).all():
            return first.astype(np.int64), at + 1

        word = self._words[at]
        stops = ~word & _HIGH_BITS
        inside = stops ^ (stops - _ONE)  # all bits up to the first stop, or all bits
        value = word & inside & _LOW_BITS

        for bits, low in (
            (1, 0x007F007F007F007F),
            (2, 0x00003FFF00003FFF),
            (4, 0x0FFFFFFF),
        ):
            mask = np.uint64(low)
            high = np.uint64(low << (8 * bits))
            value = (value & mask) | ((value & high) >> np.uint64(bits))

        # The stop is a power of two; its exponent (7, 15 ... 63) is the position of its byte.
        stop = (stops & (~stops + _ONE)).astype(np.float64)
        exponent = (stop.view(np.int64) >> 52) - 1023
        end = at + (exponent + 1 >> 3)
        number = value.view(np.int64)

        long = np.flatnonzero(stops == 0)
        if len(long):
            ninth = self._bytes[at[long] + 8].astype(np.int64)
            tenth = self._bytes[at[long] + 9].astype(np.int64)

            goes_on = ninth > 127
            if (goes_on & (tenth > 127)).any():
                raise DecodeError

            last_bit = np.where(goes_on, tenth & 1, 0)
            number[long] |= (ninth & 127) << 56 | last_bit << 63
            end[long] = at[long] + 9 + goes_on

        return number, end
