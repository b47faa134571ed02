"""Any file to messages, one at a time: bounded in memory whatever the file holds.

A log reaches people in many dresses: packed, in UTF-16 of a Windows shell, as the output of a notebook,
as JSON lines of a container, with colours, with a progress bar in front, two messages glued to one line.
What leaves here is plain text, one message of TensorFlow's logger (or one bare line) at a time.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from analyzer.model.errors import InputError
from analyzer.oom.scan.broken_lines import unbroken, width_of_screen

BLOCK_BYTES: Final = 1 << 20  # read at once
_LONGEST_LINE: Final = 1 << 16  # bytes; what goes beyond is cut
_MOST_UNPACKED: Final = 1 << 36  # bytes of a compressed log: 64 GiB
_GZIP: Final = b"\x1f\x8b"

_KEYS: Final = (
    *(b"lloc", b"of memory", b"OOM", b"Chunk", b" of size ", b"in_use", b"oom", b"OUT_OF_MEM"),
    *(b"otal memory", b"otalMemory", b"ree memory", b"reeMemory", b"MemorySize", b"MB memory"),
    *(b"memory_limit", b"host memory", b"MemoryError", b"memory limit", b"memory use", b"[[node"),
    *(b"[[{{", b"[[Node", b"Node: ", b"Detected at", b"Found device", b"Dst tensor", b"XLA Label"),
    *(b"Kill", b"kill", b"KILL", b"cudnn", b"CUDNN_", b"cublas", b"CUBLAS_", b"xhausted"),
    *(b"code 137", b"code: 137", b"returned 137", b"returned: 137", b"status 137", b"status: 137"),
    *(b"code -9", b"code: -9", b"returned -9", b"returned: -9", b"status -9", b"status: -9"),
)
"""What a line that says something of memory has one of; a part of a log with none is passed over."""
_PART_BYTES: Final = 1 << 16  # of a block, looked through at once
_NEAR: Final = 64
"""Lines after one with a key that are read too: a message goes on where its head does not stand
again."""

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x07\x0b\x0c\x0e-\x1a]")
_ENDS: Final = re.compile(rb"[\r\n\x08]+")
_HEADER: Final = re.compile(
    r"((?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: )(?P<level>[IWEF]) (?P<file>\S+?:\d+\]) ?"
    r"|(?P<glog>[IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +(?P<thread>\d+) (?P<glogfile>\S+?:\d+\]) ?"
    r"|(?<![A-Za-z0-9])[IWEF] (?P<oldfile>\S*(?:tensorflow|tsl|xla)\S*\.(?:cc|h):\d+\]) ?)"
)
"""How TensorFlow's logger begins a message: since 1.1, absl's, and up to 1.0."""

_AGAIN: Final = re.compile(r"[IWEF](?:\d{4} \d| \S*(?:\.cc|\.h):\d)")
"""The least of a head: a letter and absl's date, or a letter and a source file."""

_TAG: Final = re.compile(
    r"^\W{0,3}(?P<tag>\[\d+,\d+\]\s?<\w+>|\[?(?:rank|worker|ps|chief|node)[ _:-]?\d+\]?"
    r"|\((?:[\w.]+ )?pid=\d+[^)]*\)|\[\d{1,4}\]|\d{1,4}(?=: )|[\w./-]{2,80}(?= +\| ))",
    re.IGNORECASE,
)
"""What launchers put before a line: MPI, torchrun, srun, Ray, docker compose."""

_QUOTED: Final = re.compile(
    r"""(?:"(?:log|message|msg|textPayload|line)"\s*:\s*|\b(?:log|message|msg)=)"((?:[^"\\]|\\.)*)"?"""
)
"""A line as the field of a collector's row: JSON of a container or a cloud, anywhere in it; logfmt."""

_CELL: Final = re.compile(r'[^"]{0,120},"(.*)"$')
"""A line as the last cell of a spreadsheet's row."""

_ROWS: Final = re.compile(rb"\}\s*,\s*\{(?=\s*\")")
"""Between two rows of a JSON array that is written without line breaks."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a log.

    Attributes:
        number: Number of its line, from 1.
        tag: What a launcher put before it; empty for none.
        thread: The thread that wrote it, where its head says so.
        file: Source file and line of its head; empty for a bare line.
        text: What it says.
        stamp: Its head, with the time to the microsecond; empty for a bare line.
    """

    number: int
    tag: str
    thread: str
    file: str
    text: str
    stamp: str = ""


def messages(stream: BinaryIO, name: str = "") -> Iterator[Message]:
    """Yield the messages of a log that may say something of memory, and those right after them.

    Args:
        stream: The file's bytes; packed with gzip or not.
        name: What to call it in an error.

    Raises:
        InputError: it is packed and the packing is damaged from its start.
    """
    number = 1
    pending = b""
    is_escaped: bool | None = None
    is_array, width = False, 0
    for block in _text_blocks(stream, name):
        if is_escaped is None:
            is_escaped = _is_notebook(block)
            width = 0 if is_escaped else width_of_screen(block)
            is_array = not is_escaped and block[:1] in (b"[", b"{")
        pending += block
        if is_array:
            pending = _ROWS.sub(b"},\n{", pending)
        cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if not cut and len(pending) < BLOCK_BYTES:
            continue
        if not cut or len(pending) - cut > _LONGEST_LINE:
            cut = len(pending)
        part, pending = pending[:cut], pending[cut:]
        part = unbroken(part, width) if width else part
        yield from _block_messages(part, number, is_escaped)
        number += part.count(b"\n")
    if pending:
        pending = unbroken(pending, width) if width else pending
        yield from _block_messages(pending, number, bool(is_escaped))
        number += 1
    yield Message(number - 1, "", "", "", "")


def _block_messages(block: bytes, number: int, is_escaped: bool) -> Iterator[Message]:
    """Yield the messages of whole lines, part by part; none of a part with nothing of memory."""
    start = 0
    while start < len(block):
        end = min(start + _PART_BYTES, len(block))
        if end < len(block):
            end = max(block.rfind(b"\n", start, end), block.rfind(b"\r", start, end)) + 1 or end
            if end <= start:
                end = min(start + _PART_BYTES, len(block))
        part = block[start:end]
        yield from _part_messages(part, number, is_escaped)
        number += part.count(b"\n")
        start = end


def _part_messages(part: bytes, number: int, is_escaped: bool) -> Iterator[Message]:
    """Yield the messages of the lines that have a key, and of those right after them."""
    start = 0
    for place in _places(part):
        if place < start:
            continue
        begin = part.rfind(b"\n", start, place) + 1 or start
        if not is_escaped:
            begin = max(begin, part.rfind(b"\r", start, place) + 1)
        number += part.count(b"\n", start, begin)
        start = begin
        left = _NEAR
        while left > 0 and start < len(part):
            end = part.find(b"\n", start)
            end = len(part) if end < 0 else end
            raw = part[start:end]
            for piece in _ENDS.split(_unescaped(raw) if is_escaped else raw):
                left = _NEAR if any(key in piece for key in _KEYS) else left - 1
                if piece and left > 0:
                    yield from _split(piece[:_LONGEST_LINE], number)
            number += part.count(b"\n", start, end + 1)
            start = end + 1


def _places(part: bytes) -> list[int]:
    """Return where keys stand, in order."""
    found = []
    for key in _KEYS:
        place = part.find(key)
        while place >= 0:
            found.append(place)
            place = part.find(key, place + len(key))
    return sorted(found)


def _split(raw: bytes, number: int) -> Iterator[Message]:
    """Yield the messages of one line: several where heads stand in its middle."""
    text = raw.decode("utf-8", "replace").rstrip()
    if "\x1b" in text or not text.isprintable():
        text = _ANSI.sub("", text)
    if text.endswith('"') and (cell := _CELL.match(text)):
        text = cell[1].replace('""', '"')
    fields = _QUOTED.findall(text) if '"' in text else []
    if fields:
        for line in (line for field in fields for line in _plain(field).splitlines()):
            yield from _split(line.encode("utf-8", "replace"), number)
        return
    heads = _heads(text)
    if not heads:
        tag = _tag_of(text)
        yield Message(number, tag, "", "", text[len(tag) :] if tag else text)
        return
    before = text[: heads[0].start()]
    tag = _tag_of(before)
    if before.strip() and len(before) > len(tag) + 3:
        yield Message(number, tag, "", "", before)
    for place, head in enumerate(heads):
        end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
        file = head["file"] or head["glogfile"] or head["oldfile"] or ""
        said = text[head.end() : end]
        stamp = "" if head["oldfile"] else head[0]
        yield Message(number, tag, head["thread"] or "", file, said, stamp)


def _heads(text: str) -> list[re.Match[str]]:
    """Return the logger's heads in a line; the usual line has one, at its start."""
    first = _HEADER.match(text)
    if first is not None and not _AGAIN.search(text, first.end()):
        return [first]
    if first is None and not _AGAIN.search(text):
        return []
    return list(_HEADER.finditer(text))


def _tag_of(text: str) -> str:
    match = _TAG.match(text)
    return match["tag"] if match else ""


def _plain(field: str) -> str:
    """Return a JSON text as it was before it was written as one."""
    if "\\" not in field:
        return field
    return _unescaped(field.encode("utf-8", "replace")).decode("utf-8", "replace")


def _is_notebook(block: bytes) -> bool:
    head = block[:4096].lstrip()
    return head.startswith(b"{") and (b'"cells"' in head or b'"nbformat"' in head)


_ESCAPES: Final = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b'"': b'"',
    b"\\": b"\\",
    b"/": b"/",
    b"b": b"\b",
}
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")


def _unescaped(raw: bytes) -> bytes:
    """Return a notebook's line with what JSON escapes as itself; its quotes may stay at the ends."""
    if b"\\" not in raw:
        return raw

    def plain(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return chr(int(match[1], 16)).encode("utf-8", "replace")
        return _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(plain, raw)


def _text_blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the file's text in UTF-8, unpacked, block by block."""
    blocks = _unpacked(stream, name)
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
    """Name the encoding of a text that is not UTF-8; Windows' shells write UTF-16."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    sample = head[:4096]
    if len(sample) > 64 and sample[1::2].count(0) > 0.9 * len(sample[1::2]):
        return "utf-16-le"
    return None


def _unpacked(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the file's bytes, unpacked where it begins as gzip does."""
    first = stream.read(BLOCK_BYTES)
    if not first.startswith(_GZIP):
        while first:
            yield first
            first = stream.read(BLOCK_BYTES)
        return
    unpacker, given, is_sound = zlib.decompressobj(wbits=31), 0, False
    block: bytes = first
    try:
        while block or unpacker.unconsumed_tail:
            out = unpacker.decompress(unpacker.unconsumed_tail + block, BLOCK_BYTES)
            given += len(out)
            if out:
                is_sound = True
                yield out
            if given > _MOST_UNPACKED:
                return
            if unpacker.eof:
                block = unpacker.unused_data.lstrip(b"\0") or stream.read(BLOCK_BYTES)
                if not block.startswith(_GZIP):
                    return
                unpacker = zlib.decompressobj(wbits=31)
                continue
            block = b"" if unpacker.unconsumed_tail else stream.read(BLOCK_BYTES)
            if not out and not block and not unpacker.unconsumed_tail:
                return
    except zlib.error as error:
        if is_sound:
            return  # a copy that was cut: what came before it is read
        raise InputError(
            f"{name or 'The log'} is damaged gzip: {error}.", hint="Unpack it, or copy it again."
        ) from None
