"""The bytes of a log as UTF-8 text: unpacked, decoded, with the lines that a terminal broke joined."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, Final, cast

from analyzer.model.errors import InputError

BLOCK_BYTES: Final = 1 << 20  # read at once
_MOST_UNPACKED: Final = 1 << 36  # bytes of a compressed log: 64 GiB
_GZIP: Final = b"\x1f\x8b"
_MARKS: Final = (  # UTF-32 first: its mark starts with that of UTF-16
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_ZEROS: Final[dict[tuple[bool, ...], str]] = {
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
}
"""Encodings by the bytes of four that are zero in English text."""

_HEAD: Final = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IWEF] "
    rb"|[IWEF]\d{4} \d\d:\d\d|[IWEF] \S*tensorflow"
)
"""Start of a line of TensorFlow's logger."""
_NARROWEST: Final = 40  # columns of a terminal
_WIDEST: Final = 400
_DROPPED_BLANKS: Final = 2  # at the end of a line, which copying from a terminal may remove
_LEAST_BROKEN: Final = 3  # lines that must look broken


def read_text(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, block by block, or raise an InputError for a damaged gzip header."""
    blocks = _unpack(stream, name)
    first = next(blocks, b"")
    encoding = _encoding_of(first)
    if encoding is None:
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")


def _encoding_of(head: bytes) -> str | None:
    """Return the encoding if it is not UTF-8: Windows shells write UTF-16, and UTF-32 if asked."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    sample = head[: min(len(head), 4096) // 4 * 4]
    zeros = [sample[place::4].count(0) > 0.9 * len(sample) / 4 for place in range(4)]
    return _ZEROS.get(tuple(zeros)) if len(sample) > 64 else None


def _unpack(stream: BinaryIO, name: str) -> Iterator[bytes]:
    block: bytes = stream.read(BLOCK_BYTES)
    if not block.startswith(_GZIP):
        yield from chain([block], iter(lambda: stream.read(BLOCK_BYTES), b""))
        return
    unpacker, total = gzip.GzipFile(fileobj=cast(BinaryIO, _Rest(block, stream))), 0
    try:
        while total <= _MOST_UNPACKED and (out := unpacker.read1(BLOCK_BYTES)):
            total += len(out)
            yield out
    except (EOFError, OSError, zlib.error) as error:
        if not total:
            raise InputError(
                f"{name or 'The log'} is damaged gzip: {error}.",
                hint="Unpack it, or copy the file once more.",
            ) from None
        # A truncated copy: use the part before the damage.


@dataclass
class _Rest:
    """A stream whose first block was read before."""

    first: bytes
    stream: BinaryIO

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        part, self.first = self.first[:size], self.first[size:]
        return part or self.stream.read(size)


def find_screen_width(sample: bytes) -> int:
    """Return the width at which a terminal broke the lines of a log; 0 if it did not.

    All lines are at most this wide, and lines of TensorFlow's logger that reach it continue in a line
    without the logger's prefix.
    """
    lines = sample.replace(b"\r\n", b"\n").split(b"\n")
    width = max(map(len, lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    broken = whole = 0
    for line, after in zip(lines, lines[1:], strict=False):
        if len(line) == width and _HEAD.match(line):
            is_broken = bool(after) and not _HEAD.match(after)
            broken, whole = broken + is_broken, whole + (not is_broken)
    return width if broken >= _LEAST_BROKEN and whole * 10 <= broken else 0


def join_broken_lines(part: bytes, width: int) -> bytes:
    """Join lines that a terminal of this width broke; empty lines keep the line numbers the same."""
    if not width:
        return part
    out: list[bytes] = []
    joined = 0  # lines that were appended to the last one
    is_open, missing = False, 0
    for line in part.split(b"\n"):
        bare = line.rstrip(b"\r")
        if is_open and not _HEAD.match(bare):
            out[-1] += b" " * missing + bare
            joined += 1
        else:
            out.extend([b""] * joined)
            out.append(bare)
            joined = 0
        missing = width - len(bare)
        is_open = missing == 0 or (
            0 < missing <= _DROPPED_BLANKS and _HEAD.match(out[-1]) is not None
        )
    out.extend([b""] * joined)
    return b"\n".join(out)
