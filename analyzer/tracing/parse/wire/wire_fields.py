"""The fields of protobuf messages: of one message, or of many messages at once.

A field is a key (its number and wire type) and a value: a varint, 8 or 4 bytes, or a length and bytes.
If many small messages lie in one block, the next field of each is read with a few array operations.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analyzer.model.contract.reading import (
    FREE_BYTES,
    GZIP_MAGIC,
    open_without_blocking,
    unpack_into,
)

Positions = npt.NDArray[np.int64]

VARINT: Final = 0
EIGHT_BYTES: Final = 1
BYTES: Final = 2
FOUR_BYTES: Final = 5  # protobuf's wire types (3 and 4 are obsolete)

_LONGEST_VARINT: Final = 10
_WINDOW_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 2 * _LONGEST_VARINT + 8
_PADDING: Final = 16
_ONE: Final = np.uint64(1)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)


class WireError(ValueError):
    """Bytes that are no protobuf message, or are truncated."""

    def __init__(self) -> None:
        super().__init__("a message that ends within a field")


class Field(NamedTuple):
    """One field of a message."""

    number: int
    wire: int
    start: int  # of its value
    end: int
    begins: int


def iterate_fields(source: ByteSource, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between ``start`` and ``end``."""
    at, base, window = start, start, b""
    while at < end:
        if at - base + _HEAD_BYTES > len(window) and base + len(window) < end:
            base, window = at, source.read(at, min(at + _WINDOW_BYTES, end))
        key, _, place, until = read_field(window, at - base)
        if base + until > end:
            raise WireError
        yield Field(key >> 3, key & 7, base + place, base + until, at)
        at = base + until


def read_field(content: bytes, at: int) -> tuple[int, int, int, int]:
    """Return key, varint (0 for others), start and end of the value of the field at a position."""
    key, start = read_varint(content, at)
    wire, value, end = key & 7, 0, 0
    if wire == VARINT:
        value, end = read_varint(content, start)
    elif wire == BYTES:
        length, start = read_varint(content, start)
        end = start + length
    elif wire in (EIGHT_BYTES, FOUR_BYTES):
        end = start + (8 if wire == EIGHT_BYTES else 4)
    if not key >> 3 or not end:
        raise WireError
    return key, value, start, end


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a position and its end; raise a WireError if there is none."""
    value = shift = 0
    for byte in content[at : at + _LONGEST_VARINT]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & ((1 << 64) - 1), at + shift // 7
    raise WireError


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """The next field of each of ``n`` messages; arrays of shape ``(n,)``."""

    key: Positions  # eight times the number plus the wire type
    start: Positions  # position of the value; of the first byte for a bytes field
    # the varint, the 8 bytes as integer, or the number of bytes; int64, 0 for 4 bytes
    value: Positions
    end: Positions  # start of the next field


class WireBlock:
    """A block of bytes that contains many messages."""

    def __init__(self, content: bytes) -> None:
        """Copy ``content`` with padding, so that 8 bytes can be read at each position."""
        self.size_bytes = len(content)
        self._content = content
        self._bytes = np.zeros(len(content) + _PADDING, np.uint8)
        self._bytes[: len(content)] = np.frombuffer(content, np.uint8)
        self._words = np.ndarray(
            (len(content) + _PADDING - 7,), "<u8", buffer=self._bytes, strides=(1,)
        )

    def text(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``."""
        return self._content[start:end]

    def next_fields(self, at: Positions) -> FieldColumns:
        """Return the field at each position; raise a WireError if there is none at one."""
        key, start = self.varints(at)
        wire = key & 7
        counted = (wire == VARINT) | (wire == BYTES)
        if counted.all():
            value, end = self.varints(start)
        else:
            value, end = np.zeros(len(at), np.int64), start.copy()
            value[counted], end[counted] = self.varints(start[counted])
            eight, four = wire == EIGHT_BYTES, wire == FOUR_BYTES
            value[eight] = self._words[start[eight]].view(np.int64)
            end[eight] += 8
            end[four] += 4
            if not (counted | eight | four).all():
                raise WireError
        sized = wire == BYTES
        if sized.any():
            start = np.where(sized, end, start)
            end = np.where(sized, end + value, end)
        if ((key < 8) | (end <= at) | (end > self.size_bytes)).any():
            raise WireError
        return FieldColumns(key, start, value, end)

    def varints(self, at: Positions) -> tuple[Positions, Positions]:
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
        for bits, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x0FFFFFFF)):
            mask = np.uint64(low)
            high = np.uint64(low << (8 * bits))
            value = (value & mask) | ((value & high) >> np.uint64(bits))
        # The stop is a power of two; its exponent (7, 15 ... 63) is the position of its byte.
        stop = (stops & (~stops + _ONE)).astype(np.float64)
        end = at + ((stop.view(np.int64) >> 52) - 1022 >> 3)
        number = value.view(np.int64)
        long = np.flatnonzero(stops == 0)
        if len(long):
            ninth, tenth = (self._bytes[at[long] + more].astype(np.int64) for more in (8, 9))
            goes_on = ninth > 127
            if (goes_on & (tenth > 127)).any():
                raise WireError
            number[long] |= (ninth & 127) << 56 | np.where(goes_on, tenth & 1, 0) << 63
            end[long] = at[long] + 9 + goes_on
        return number, end


_HELD_BYTES: Final = 1 << 26
"""Unpacked content up to this size is held in memory, larger content in a temporary file."""


class ByteSource:
    """The first ``size_bytes`` of an open file; bytes that are appended later are ignored."""

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        """Read from ``file``; the caller closes it."""
        self._file = file
        self.size_bytes = size_bytes

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``; fewer at the file's end."""
        self._file.seek(start)
        return self._file.read(max(min(end, self.size_bytes) - start, 0))


@contextmanager
def open_source(path: Path, *, most_ratio: int) -> Iterator[ByteSource]:
    """Open a file; unpack it first if it is gzipped, up to ``most_ratio`` above 8 MiB.

    An OSError says that it cannot be read, or is a pipe or a device, which may never end; a
    ValueError, that it is a damaged gzip file or unpacks to more than the limit.
    """
    with open(path, "rb", buffering=0, opener=open_without_blocking) as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        if not is_packed:
            yield ByteSource(file, there.st_size)
            return
        limit = FREE_BYTES + most_ratio * there.st_size
        with SpooledTemporaryFile(_HELD_BYTES) as unpacked:
            unpack_into(unpacked, file, limit)
            yield ByteSource(unpacked, unpacked.tell())
