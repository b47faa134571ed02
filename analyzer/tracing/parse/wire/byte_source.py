"""Random access to the bytes of a file, which may be larger than the host's memory."""

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

from analyzer.model.contract.reading import GZIP_MAGIC, open_without_blocking

_PIECE_BYTES: Final = 1 << 22
_HELD_BYTES: Final = 1 << 26
"""Unpacked content up to this size is held in memory, larger content in a temporary file."""

_FREE_BYTES: Final = 8 << 20


class ByteSource:
    """Bytes of an open file.

    Attributes:
        size_bytes: Their number; bytes that are appended later are ignored.
    """

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
    """Open a file; unpack it first if it is gzipped.

    Args:
        path: The file.
        most_ratio: Limit of the ratio of compression above 8 MiB.

    Raises:
        OSError: It cannot be read, or is a pipe or a device, which may never end.
        ValueError: It is a damaged gzip file, or unpacks to more than the limit.
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
        limit = _FREE_BYTES + most_ratio * there.st_size
        with SpooledTemporaryFile(_HELD_BYTES) as unpacked:
            for piece in _unpacked(iter(lambda: file.read(_PIECE_BYTES), b"")):
                unpacked.write(piece)
                if unpacked.tell() > limit:
                    raise ValueError(f"it unpacks to more than {limit >> 20} MiB")
            yield ByteSource(unpacked, unpacked.tell())


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of gzipped pieces, which may contain several gzip members.

    Raises:
        ValueError: It is no gzip file, or is truncated.
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
        raise ValueError(f"its compression is damaged: {error}") from None
    if not member.eof:
        raise ValueError("it is truncated")
