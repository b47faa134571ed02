"""The bytes of a log as UTF-8 text: unpacked, decoded, with the lines that a terminal broke joined."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import BinaryIO, Final

from analyzer.model.errors import InputError

BLOCK_BYTES: Final = 1 << 20  # read at once
_MOST_UNPACKED: Final = 1 << 36  # bytes of a compressed log: 64 GiB
_GZIP: Final = b"\x1f\x8b"
_GZIP_FORMAT: Final = 31  # zlib's number for gzip with any window
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
_WIDTHS: Final = range(40, 401)  # columns of a terminal
_DROPPED_BLANKS: Final = 2  # at the end of a line, which copying from a terminal may remove
_LEAST_BROKEN: Final = 3  # lines that must look broken


def read_text(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, block by block, or raise an InputError for a damaged gzip header."""
    blocks = _unpack(stream, name)
    first = next(blocks, b"")
    encoding = _encoding_of(first)
    if encoding is None:
        yield from chain([first], blocks)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _encoding_of(head: bytes) -> str | None:
    """Return the encoding if it is not UTF-8: Windows shells write UTF-16, and UTF-32 if asked."""
    sample = head[: min(len(head), 4096) // 4 * 4]
    zeros = tuple(sample[place::4].count(0) > 0.9 * len(sample) / 4 for place in range(4))
    return _ZEROS.get(zeros) if len(sample) > 64 else None


def _unpack(stream: BinaryIO, name: str) -> Iterator[bytes]:
    first = stream.read(BLOCK_BYTES)
    blocks = chain([first], iter(lambda: stream.read(BLOCK_BYTES), b""))
    if not first.startswith(_GZIP):
        yield from blocks
        return
    unpacker, total = zlib.decompressobj(_GZIP_FORMAT), 0
    try:
        for block in blocks:
            while block and total <= _MOST_UNPACKED:
                out = unpacker.decompress(block, BLOCK_BYTES)
                block = unpacker.unconsumed_tail
                if unpacker.eof:  # another file may be appended
                    block, unpacker = unpacker.unused_data, zlib.decompressobj(_GZIP_FORMAT)
                total += len(out)
                if out:
                    yield out
    except zlib.error as error:
        if not total:  # else use the part before the damage
            raise InputError(
                f"{name or 'The log'} is damaged gzip: {error}.",
                hint="Unpack it, or copy the file once more.",
            ) from None


def find_screen_width(sample: bytes) -> int:
    """Return the width at which a terminal broke the lines of a log; 0 if it did not.

    All lines are at most this wide, and lines of TensorFlow's logger that reach it continue in a line
    without the logger's prefix.
    """
    lines = sample.replace(b"\r\n", b"\n").split(b"\n")
    width = max(map(len, lines))
    if width not in _WIDTHS:
        return 0
    is_broken = [
        bool(after) and not _HEAD.match(after)
        for line, after in pairwise(lines)
        if len(line) == width and _HEAD.match(line)
    ]
    broken = sum(is_broken)
    return width if broken >= max(_LEAST_BROKEN, 10 * (len(is_broken) - broken)) else 0


def join_broken_lines(part: bytes, width: int) -> bytes:
    """Join lines that a terminal of this width broke; empty lines keep the line numbers the same."""
    if not width:
        return part
    out: list[bytes] = []
    start = missing = 0  # place of the line that is open, and the blanks that it lost
    is_open = False
    for line in part.split(b"\n"):
        bare = line.rstrip(b"\r")
        if is_open and not _HEAD.match(bare):
            out[start] += b" " * missing + bare
            out.append(b"")
        else:
            start = len(out)
            out.append(bare)
        missing = width - len(bare)
        is_short = 0 < missing <= _DROPPED_BLANKS and _HEAD.match(out[start]) is not None
        is_open = missing == 0 or is_short
    return b"\n".join(out)
