"""A log in any format as lines: plain text, one at a time, in bounded memory.

Logs arrive compressed, in UTF-16, as a notebook's output, as JSON lines of a container, with colours,
with a progress bar in front, or with two messages in one line.
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from itertools import chain
from typing import BinaryIO, NamedTuple

from analyzer.model.contract.reading import GZIP_MAGIC, unpack_pieces
from analyzer.model.errors import InputError
from analyzer.oom.wordings import PATTERNS, find, find_all, read_groups

_BLOCK_BYTES = 1 << 16  # read at once
_LONGEST_LINE = 1 << 14  # bytes; the rest is dropped
_LONGEST_ROW = 1 << 26  # bytes of a notebook or of lines with a progress bar

# Every line about memory contains one of these, or follows such a line. Other lines are skipped.
KEYS = tuple((files("analyzer.oom") / "line_keys.txt").read_bytes().splitlines())
_NEAR = 64  # lines after one with a key that are read too: continuation lines may lack a key

_ENDS = re.compile(rb"[\r\n\x08]+")

# Number of a task, as ``srun --label`` writes it; numbers of lines look alike and do not repeat.
_LABEL = re.compile(rb"^(\d{1,5}): ", re.MULTILINE)
_LEAST_REPEATED = 3  # lines of one task
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b"}


class LogLine(NamedTuple):
    """One message of TensorFlow's logger, or one other line.

    ``tag`` is the prefix of a launcher, ``file`` the source and line that the logger prints,
    ``stamp`` its prefix with the time; all are empty for other lines.
    """

    number: int
    tag: str
    text: str
    thread: str = ""
    file: str = ""
    stamp: str = ""


def read_lines(stream: BinaryIO, name: str) -> Iterator[LogLine]:
    """Yield the lines of a log that may be about memory, and an empty last line."""
    blocks = _read_text(stream, name)
    first = next(blocks, b"")
    head = first[:4096].lstrip()
    has_cells = b'"cells"' in head or b'"nbformat"' in head
    is_notebook = has_cells and head.startswith(b"{")

    labels = Counter(_LABEL.findall(first)).values()
    is_labelled = max(labels, default=0) >= _LEAST_REPEATED

    number = left = 0  # of the row, and lines that are still read

    for number, row in _find_rows(chain([first], blocks)):
        if is_notebook:
            row = _unescape(row)
        elif is_labelled:
            row = _LABEL.sub(rb"rank \1: ", row)

        if left <= 0 and not _has_key(row):
            continue

        for piece in _ENDS.split(row):
            left = _NEAR if _has_key(piece) else left - 1
            if piece and left > 0:
                yield from _lines_of(piece[:_LONGEST_LINE], number)

    yield LogLine(number, "", "")


def _find_rows(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
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
    heads = find_all("logger_head", text)
    starts = [head.start() for head in heads]
    starts.append(len(text))

    before = text[: starts[0]]
    match = find("launcher_tag", before)
    tag = match["tag"] if match else ""

    if not heads:
        yield LogLine(number, tag, text[len(tag) :])
    elif before.strip() and len(before) > len(tag) + 3:
        yield LogLine(number, tag, before)

    for head, end in zip(heads, starts[1:], strict=True):
        yield LogLine(number, tag, text[head.end() : end], **read_groups(head))


def _unescape(raw: bytes) -> bytes:
    return _ESCAPE.sub(_plain_character, raw)


def _plain_character(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return chr(int(match[1], 16)).encode("utf-8", "replace")

    return _ESCAPES.get(match[2], match[2])


def _read_text(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the log in UTF-8, block by block; Windows shells write UTF-16."""
    blocks = _unpack(stream, name)
    first = next(blocks, b"")
    blocks = chain([first], blocks)

    if not first.startswith(_MARKS):
        yield from blocks
        return

    for text in codecs.iterdecode(blocks, "utf-16", "replace"):
        yield text.encode("utf-8", "replace")


def _unpack(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the blocks of a log, or raise an InputError for a damaged gzip header."""
    block = stream.read(_BLOCK_BYTES)
    title = name or "The log"

    if block.startswith(b"PK\x03\x04"):
        raise InputError(f"{title} is a zip archive.", hint="Unpack it first.")

    if not block.startswith(GZIP_MAGIC):
        while block:
            yield block
            block = stream.read(_BLOCK_BYTES)

        return

    pieces = filter(None, unpack_pieces(stream, block))

    try:
        first = next(pieces, b"")
    except ValueError as error:
        raise InputError(
            f"{title} is damaged gzip: {error}.",
            hint="Unpack it, or copy the file once more.",
        ) from None

    yield first

    with suppress(ValueError):  # use the part before the damage
        yield from pieces
