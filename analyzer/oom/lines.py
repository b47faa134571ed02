"""A log in any format as lines: plain text, one at a time, in bounded memory.

Logs arrive compressed, in UTF-16, as a notebook's output, as JSON lines of a container, with colours,
with a progress bar in front, or with two messages in one line.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.resources import files
from itertools import chain, pairwise
from typing import BinaryIO, Final, NamedTuple

from analyzer.model.contract.reading import GZIP_MAGIC, unpack_pieces
from analyzer.model.errors import InputError
from analyzer.oom.wordings import PATTERNS, find, find_all

_BLOCK_BYTES: Final = 1 << 16  # read at once
_LONGEST_LINE: Final = 1 << 14  # bytes; the rest is dropped
_LONGEST_ROW: Final = 1 << 26  # bytes of a notebook or of lines with a progress bar
_MOST_UNPACKED: Final = 1 << 36  # bytes of a compressed log: 64 GiB

KEYS: Final = tuple((files("analyzer.oom") / "line_keys.txt").read_bytes().splitlines())
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


class LogLine(NamedTuple):
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


def read_lines(stream: BinaryIO, name: str = "") -> Iterator[LogLine]:
    """Yield the lines of a log that may be about memory, and an empty last line."""
    blocks = _read_text(stream, name)
    first = next(blocks, b"")
    head = first[:4096].lstrip()
    is_notebook = head.startswith(b"{") and (
        b'"cells"' in head or b'"nbformat"' in head
    )
    is_array = not is_notebook and first[:1] in (b"[", b"{")
    labels = Counter(_LABEL.findall(first))
    is_labelled = max(labels.values(), default=0) >= _LEAST_REPEATED

    rows = _find_rows(chain([first], blocks))
    width = 0 if is_notebook else _find_screen_width(first)
    if width:
        rows = _join_broken_rows(rows, width)

    number = left = 0  # of the row, and lines that are still read
    for number, raw in rows:
        row = _ROWS.sub(b"}\n{", raw) if is_array else raw
        if is_notebook:
            row = _unescape(row)
        elif is_labelled:
            row = _LABEL.sub(rb"rank \1: ", row)

        for piece in _ENDS.split(row) if left > 0 or _has_key(row) else ():
            left = _NEAR if _has_key(piece) else left - 1
            if piece and left > 0:
                yield from _lines_of(piece[:_LONGEST_LINE], number)

    yield LogLine(number, "", "", "", "")


def _find_rows(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered rows up to a line feed of blocks with a key, and of the blocks after them."""
    number = 0
    rest = b""
    is_near = False
    for block in blocks:
        *rows, last = (rest + block).rsplit(b"\n", 1)
        rest = last[:_LONGEST_ROW]
        for whole in rows:
            has_key = _has_key(whole)
            if has_key or is_near:
                yield from enumerate(whole.split(b"\n"), number + 1)
            number += whole.count(b"\n") + 1
            is_near = has_key

    yield number + bool(rest), rest


def _has_key(text: bytes) -> bool:
    return any(key in text for key in KEYS)


def _lines_of(raw: bytes, number: int) -> Iterator[LogLine]:
    """Yield the lines in a row of a collector or in a line: several if it quotes others."""
    text = raw.decode("utf-8", "replace").rstrip()
    if not text.isprintable():
        text = PATTERNS["terminal_control"].sub("", text)

    fields = find_all("quoted_line", text)
    if not fields:
        yield from _split_at_prefixes(text, number)

    for field in fields:
        quoted = field["text"].encode("utf-8", "replace")
        for line in _unescape(quoted).splitlines():
            yield from _lines_of(line, number)


def _split_at_prefixes(text: str, number: int) -> Iterator[LogLine]:
    """Yield a line for each logger prefix in a text, and for the text before the first."""
    heads: list[re.Match[str]] = []
    if PATTERNS["maybe_logger_head"].search(text):  # cheap to search for
        heads = list(PATTERNS["logger_head"].finditer(text))

    starts = [head.start() for head in heads]
    starts.append(len(text))

    before = text[: starts[0]]
    match = find("launcher_tag", before)
    tag = match["tag"] if match else ""

    if not heads:
        yield LogLine(number, tag, "", "", text[len(tag) :])
    elif before.strip() and len(before) > len(tag) + 3:
        yield LogLine(number, tag, "", "", before)

    for head, end in zip(heads, starts[1:], strict=True):
        file = head["file"] or head["absl_file"] or head["bare_file"]
        stamp = "" if head["bare_file"] else head[0]
        thread = head["thread"] or ""
        yield LogLine(number, tag, thread, file, text[head.end() : end], stamp)


def _unescape(raw: bytes) -> bytes:
    if b"\\" not in raw:
        return raw
    return _ESCAPE.sub(_plain_character, raw)


def _plain_character(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return chr(int(match[1], 16)).encode("utf-8", "replace")
    return _ESCAPES.get(match[2], match[2])


_ZEROS: Final[dict[tuple[bool, ...], str]] = {
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
}
"""Encodings by the bytes of four that are zero in English text."""


def _read_text(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, block by block, or raise an InputError for a damaged gzip header."""
    blocks = _unpack(stream, name)
    first = next(blocks, b"")
    blocks = chain([first], blocks)
    encoding = _find_encoding(first)
    if not encoding:
        yield from blocks
        return

    decoder = codecs.getincrementaldecoder(encoding)("replace")

    for block in blocks:
        yield decoder.decode(block).encode("utf-8", "replace")


def _find_encoding(first: bytes) -> str:
    """Return UTF-16 or UTF-32, which Windows shells write; empty for others."""
    sample = first[: min(len(first), 4096) // 4 * 4]
    if len(sample) <= 64:
        return ""

    most = 0.9 * len(sample) / 4
    zeros = tuple(sample[place::4].count(0) > most for place in range(4))
    return _ZEROS.get(zeros, "")


def _unpack(stream: BinaryIO, name: str) -> Iterator[bytes]:
    first = stream.read(_BLOCK_BYTES)
    if first.startswith(b"PK\x03\x04"):
        raise InputError(
            f"{name or 'The log'} is a zip archive.", hint="Unpack it first."
        )

    if not first.startswith(GZIP_MAGIC):
        while first:
            yield first
            first = stream.read(_BLOCK_BYTES)

        return

    total = 0

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


_HEAD: Final = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IWEF] |[IWEF]\d{4} \d\d:\d\d"
)
"""Start of a line of TensorFlow's logger."""
_WIDTHS: Final = range(40, 401)  # columns of a terminal
_DROPPED_BLANKS: Final = (
    2  # at the end of a line, which copying from a terminal may remove
)
_LEAST_BROKEN: Final = 3  # lines that must look broken


def _find_screen_width(sample: bytes) -> int:
    """Return the width at which a terminal broke the lines of a log; 0 if it did not.

    All lines are at most this wide, and lines of TensorFlow's logger that reach it continue in a line
    without the logger's prefix.
    """
    lines = sample.replace(b"\r\n", b"\n").split(b"\n")
    width = max(map(len, lines))
    if width not in _WIDTHS:
        return 0

    broken = whole = 0
    for line, after in pairwise(lines):
        if len(line) == width and _HEAD.match(line):
            is_broken = bool(after) and not _HEAD.match(after)
            broken += is_broken
            whole += not is_broken
    return width if broken >= max(_LEAST_BROKEN, 10 * whole) else 0


def _join_broken_rows(
    rows: Iterable[tuple[int, bytes]], width: int
) -> Iterator[tuple[int, bytes]]:
    """Yield rows that a terminal of this width broke as one, with the number of the first."""
    number, whole = 0, b""
    missing = 0  # blanks that the last part lost
    is_open = False
    for place, row in rows:
        part = row.rstrip(b"\r")
        if is_open and not _HEAD.match(part):
            whole += b" " * missing + part
        else:
            yield number, whole
            number, whole = place, part

        missing = width - len(part)
        is_short = 0 < missing <= _DROPPED_BLANKS and bool(_HEAD.match(whole))
        is_open = missing == 0 or is_short

    yield number, whole
