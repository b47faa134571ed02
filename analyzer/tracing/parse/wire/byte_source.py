"""A file read piece by piece: a trace may be larger than the memory there is to hold it."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from analyzer.model.contract.reading import GZIP_MAGIC

_PIECE_BYTES: Final = 1 << 22
_HELD_BYTES: Final = 1 << 26
"""What is unpacked lies in memory up to so many bytes, beyond it in a temporary file without a name."""

_FREE_BYTES: Final = 8 << 20


class ByteSource:
    """Bytes that are read from any place of an open file.

    Attributes:
        size_bytes: How many there are; what is written behind them later is not read.
    """

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        """Read from ``file``, which stays the caller's to close."""
        self._file = file
        self.size_bytes = size_bytes

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to behind ``end``; fewer where the file ends."""
        self._file.seek(start)
        return self._file.read(max(min(end, self.size_bytes) - start, 0))


@contextmanager
def open_source(path: Path, *, most_ratio: int) -> Iterator[ByteSource]:
    """Open a file; one that is gzipped is unpacked first.

    Args:
        path: The file.
        most_ratio: What is unpacked beyond 8 MiB is at most so many times the packed size.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which may never end.
        ValueError: it is a gzip that is damaged, or unpacks to far more than a trace would.
    """
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        if not is_packed:
            yield ByteSource(file, there.st_size)
            return
        limit = _FREE_BYTES + most_ratio * there.st_size
        with SpooledTemporaryFile(_HELD_BYTES) as unpacked:
            for piece in _unpacked(iter(lambda: file.read(_PIECE_BYTES), b"")):
                unpacked.write(piece)
                if unpacked.tell() > limit:
                    raise ValueError(f"it unpacks to more than {limit >> 20} MiB")
            yield ByteSource(unpacked, unpacked.tell())


def _open_at_once(name: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes into is not waited for."""
    return os.open(name, flags | os.O_NONBLOCK)


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what gzipped pieces hold; a file may be several such files, one behind the other.

    Raises:
        ValueError: it is no gzip, or is cut short.
    """
    member = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                if member.eof:
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(rest, _PIECE_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
            while not member.eof and (more := member.decompress(b"", _PIECE_BYTES)):
                yield more
    except zlib.error as error:
        raise ValueError(f"its packing is damaged: {error}") from None
    if not member.eof:
        raise ValueError("it is cut short")
