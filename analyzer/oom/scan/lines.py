"""A log in any format as messages: plain text, one at a time, in bounded memory.

Logs arrive compressed, in UTF-16, as a notebook's output, as JSON lines of a container, with colours,
with a progress bar in front, or with two messages in one line.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, pairwise
from typing import BinaryIO, Final

from analyzer.model.contract.reading import GZIP_MAGIC, unpack_pieces
from analyzer.model.errors import InputError
from analyzer.oom.scan.patterns import PATTERNS, find, find_all

_LONGEST_LINE: Final = 1 << 14  # bytes; the rest is dropped

_KEYS: Final = tuple((files("analyzer.oom.scan") / "line_keys.txt").read_bytes().splitlines())
"""Every line about memory contains one of these, or follows such a line. Other lines are skipped."""
_NEAR: Final = 64  # lines after one with a key that are read too: continuation lines may lack a key

_ENDS: Final = re.compile(rb"[\r\n\x08]+")
_ROWS: Final = re.compile(rb"\}\s*,\s*\{(?=\s*\")")
"""Boundary between two rows of a JSON array that is written on one line."""
_LABEL: Final = re.compile(rb"^(\d{1,5}): ", re.MULTILINE)
"""Number of a task, as ``srun --label`` writes it; numbers of lines look alike and do not repeat."""
_LEAST_REPEATED: Final = 3  # lines of one task
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b"}


_COLUMN: Final = re.compile(rb"(?<=\S) {2,}\w{1,60}\.py:\d{1,6} *\r?\n((?: {8,}[!-~].*\n){1,40})")
"""A file in the right column of ``rich``'s logger, and the lines that continue the message."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One message of TensorFlow's logger, or one other line.

    ``tag`` is the prefix of a launcher, ``file`` the source and line that the logger prints,
    ``stamp`` its prefix with the time; all are empty for other lines.
    """

    number: int
    tag: str
    thread: str
    file: str
    text: str
    stamp: str = ""


def read_messages(stream: BinaryIO, name: str = "") -> Iterator[LogMessage]:
    """Yield the messages of a log that may be about memory, and an empty last message."""
    blocks = read_text(stream, name)
    first = next(blocks, b"")
    head = first[:4096].lstrip()
    is_notebook = head.startswith(b"{") and (b'"cells"' in head or b'"nbformat"' in head)
    is_array = not is_notebook and first[:1] in (b"[", b"{")
    width = 0 if is_notebook else find_screen_width(first)
    place, part = _Place(is_notebook), b""
    labels = Counter(_LABEL.findall(first))
    is_labelled = max(labels.values(), default=0) >= _LEAST_REPEATED
    for part in _split_blocks(chain([first], blocks), is_array, is_notebook or is_array):
        part = _LABEL.sub(rb"rank \1: ", part) if is_labelled else part
        part = _COLUMN.sub(_join_column, part)
        yield from _messages_of_block(join_broken_lines(part, width), place)
    yield LogMessage(place.number - part.endswith(b"\n"), "", "", "", "")


def _join_column(match: re.Match[bytes]) -> bytes:
    """Return the lines of a message as one; empty lines keep the line numbers the same."""
    lines = match[1].split()
    return b" " + b" ".join(lines) + b"\n" * (match[1].count(b"\n") + 1)


def _split_blocks(blocks: Iterable[bytes], is_array: bool, has_long_lines: bool) -> Iterator[bytes]:
    """Yield blocks of whole lines; without the rest of a long line, unless the log has long lines."""
    rest, is_skipping = b"", False
    for block in blocks:
        if is_skipping:
            end = _ENDS.search(block)
            block, is_skipping = block[end.start() :] if end else b"", end is None
        pending = rest + block
        if is_array:
            pending = _ROWS.sub(b"},\n{", pending)
        cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        part, rest = pending[:cut], pending[cut:]
        if part:
            yield part
        if len(rest) > _LONGEST_LINE:
            yield rest if has_long_lines else rest[:_LONGEST_LINE]
            rest, is_skipping = b"", not has_long_lines
    if rest:
        yield rest


@dataclass(slots=True)
class _Place:
    """Place in a log: whether it has JSON escapes, the number of the line, and lines left to read."""

    is_escaped: bool
    number: int = 1
    left: int = 0


def _messages_of_block(block: bytes, place: _Place) -> Iterator[LogMessage]:
    """Yield the messages of the lines that contain a key, and of the lines right after them."""
    start = 0
    for key_place in [*([0] if place.left > 0 else []), *_find_keys(block)]:
        if key_place < start:
            continue
        begin = block.rfind(b"\n", start, key_place) + 1 or start
        if not place.is_escaped:
            begin = max(begin, block.rfind(b"\r", start, key_place) + 1)
        place.number += block.count(b"\n", start, begin)
        place.left = place.left if not begin and place.left > 0 else _NEAR
        start = begin
        while place.left > 0 and start < len(block):
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            raw = block[start:end]
            for piece in _ENDS.split(_unescape(raw) if place.is_escaped else raw):
                has_key = any(key in piece for key in _KEYS)
                place.left = _NEAR if has_key else place.left - 1
                if piece and place.left > 0:
                    yield from _messages_of_line(piece[:_LONGEST_LINE], place.number)
            place.number += block.count(b"\n", start, end + 1)
            start = end + 1
    place.number += block.count(b"\n", start)


def _find_keys(block: bytes) -> list[int]:
    places = []
    for key in _KEYS:
        place = block.find(key)
        while place >= 0:
            places.append(place)
            place = block.find(key, place + len(key))
    return sorted(places)


def _messages_of_line(raw: bytes, number: int) -> Iterator[LogMessage]:
    """Yield the messages of one line: several if logger prefixes stand in its middle."""
    text = raw.decode("utf-8", "replace").rstrip()
    if not text.isprintable():
        text = PATTERNS["terminal_control"].sub("", text)
    if text.endswith('"') and (cell := PATTERNS["spreadsheet_cell"].match(text)):
        text = cell["text"].replace('""', '"')
    fields = find_all("quoted_line", text)
    for field in fields:
        for line in _unescape(field["text"].encode("utf-8", "replace")).splitlines():
            yield from _messages_of_line(line, number)
    if not fields:
        yield from _split_at_prefixes(text, number)


def _split_at_prefixes(text: str, number: int) -> Iterator[LogMessage]:
    """Yield a message for each logger prefix in a line, and for the text before the first."""
    has_head = PATTERNS["maybe_logger_head"].search(text) is not None  # cheap to search for
    heads = list(PATTERNS["logger_head"].finditer(text)) if has_head else []
    starts = [head.start() for head in heads] + [len(text)]
    before = text[: starts[0]]
    match = find("launcher_tag", before)
    tag = match["tag"] if match else ""
    if not heads:
        yield LogMessage(number, tag, "", "", text[len(tag) :])
    elif before.strip() and len(before) > len(tag) + 3:
        yield LogMessage(number, tag, "", "", before)
    for head, end in zip(heads, starts[1:], strict=True):
        file = head["file"] or head["absl_file"] or head["bare_file"]
        stamp = "" if head["bare_file"] else head[0]
        yield LogMessage(number, tag, head["thread"] or "", file, text[head.end() : end], stamp)


def _unescape(raw: bytes) -> bytes:
    if b"\\" not in raw:
        return raw

    def plain(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return chr(int(match[1], 16)).encode("utf-8", "replace")
        return _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(plain, raw)


BLOCK_BYTES: Final = 1 << 20  # read at once
_MOST_UNPACKED: Final = 1 << 36  # bytes of a compressed log: 64 GiB
_ZEROS: Final[dict[tuple[bool, ...], str]] = {
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
}
"""Encodings by the bytes of four that are zero in English text."""
_HEAD: Final = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IWEF] "
    rb"|[IWEF]\d{4} \d\d:\d\d"
)
"""Start of a line of TensorFlow's logger."""
_WIDTHS: Final = range(40, 401)  # columns of a terminal
_DROPPED_BLANKS: Final = 2  # at the end of a line, which copying from a terminal may remove
_LEAST_BROKEN: Final = 3  # lines that must look broken


def read_text(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, block by block, or raise an InputError for a damaged gzip header."""
    blocks = _unpack(stream, name)
    first = next(blocks, b"")
    # Windows shells write UTF-16, and UTF-32 if asked.
    sample = first[: min(len(first), 4096) // 4 * 4]
    zeros = tuple(sample[place::4].count(0) > 0.9 * len(sample) / 4 for place in range(4))
    encoding = _ZEROS.get(zeros) if len(sample) > 64 else None
    if encoding is None:
        yield from chain([first], blocks)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _unpack(stream: BinaryIO, name: str) -> Iterator[bytes]:
    first, total = stream.read(BLOCK_BYTES), 0
    if first.startswith(b"PK\x03\x04"):
        raise InputError(f"{name or 'The log'} is a zip archive.", hint="Unpack it first.")
    if not first.startswith(GZIP_MAGIC):
        yield from chain([first], iter(lambda: stream.read(BLOCK_BYTES), b""))
        return
    try:
        for piece in unpack_pieces(stream, first):
            total += len(piece)
            if piece:
                yield piece
            if total > _MOST_UNPACKED:
                return
    except ValueError as error:
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
