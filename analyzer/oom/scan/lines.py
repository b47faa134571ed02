"""A log in any format as messages: plain text, one at a time, in bounded memory.

Logs arrive compressed, in UTF-16, as a notebook's output, as JSON lines of a container, with colours,
with a progress bar in front, or with two messages in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from analyzer.oom.scan.log_text import (
    find_screen_width,
    join_broken_lines,
    read_text,
)
from analyzer.oom.scan.patterns import PATTERNS, find, find_all

_LONGEST_LINE: Final = 1 << 14  # bytes; the rest is dropped

_KEYS: Final = tuple(
    (
        b"lloc|emory|OOM|oom|OUT_OF_ME|MEMLIMIT|Chunk| of size |in_use|[[node|[[{{|[[Node|"
        b"Node: |Detected at|Found device|Dst tensor|XLA Label|Kill|kill|KILL|cudnn|CUDNN_|"
        b"cublas|CUBLAS_|CUSOLVER|xhausted|xit|returned 137|returned -9|tatus 137|uda failure|"
        b"uda error|packages/torch|packages\\torch|packages/jax|1455|paging file|0xC00|"
        b"bject store|Bus error|cache blocks|imits:|Kernel|kernel died|CL_OUT_OF|srun: error|"
        b"MemorySize|CUDA error|CUFFT|ggml_|DNN library|cuInit|CUDA out of|ncclUn|NCCL|"
        b"cuDevicePrimary|CONSTRAINT_MEM|CudaAPI|ObjectStore|ALLOC_F|PlasmaStore|ALLOCATION_F|"
        b"HbmOom|VmemOom|died|exceeded limit|--mem|to reserve |cuda runtime|DataLoader worker|"
        b"available RAM"
    ).split(b"|")
)
"""Every line about memory contains one of these, or follows such a line. Other lines are skipped."""
_NEAR: Final = 64  # lines after one with a key that are read too: continuation lines may lack a key

_ENDS: Final = re.compile(rb"[\r\n\x08]+")
_ROWS: Final = re.compile(rb"\}\s*,\s*\{(?=\s*\")")
"""Boundary between two rows of a JSON array that is written on one line."""
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b"}
_LOGGER_HEAD: Final = PATTERNS["logger_head"]
_MAYBE_HEAD: Final = PATTERNS["maybe_logger_head"]


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
    pending = next(blocks, b"")
    is_escaped = _is_notebook(pending)
    is_array = not is_escaped and pending[:1] in (b"[", b"{")
    width = 0 if is_escaped else find_screen_width(pending)
    place = _Place(is_escaped)
    is_skipping = ends_line = False
    while pending:
        block, ends_line = next(blocks, b""), pending.endswith(b"\n")
        if is_skipping and (end := _ENDS.search(pending)):
            pending, is_skipping = pending[end.start() :], False
        if is_array:
            pending = _ROWS.sub(b"},\n{", pending)
        cut = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1 if block else len(pending)
        part, pending = pending[:cut], pending[cut:]
        if not is_skipping:
            yield from _messages_of_block(join_broken_lines(part, width), place)
        if len(pending) > _LONGEST_LINE:  # the rest of a line that is too long is dropped
            if not is_skipping:
                long = pending if is_escaped or is_array else pending[:_LONGEST_LINE]
                yield from _messages_of_block(long, place)
            pending, is_skipping = b"", not (is_escaped or is_array)
        pending += block
    yield LogMessage(place.number - ends_line, "", "", "", "")


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
        start = begin
        place.left = place.left if not start and place.left > 0 else _NEAR
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
    text = _decode_line(raw)
    fields = find_all("quoted_line", text)
    for field in fields:
        for line in _unescape(field["text"].encode("utf-8", "replace")).splitlines():
            yield from _messages_of_line(line, number)
    if not fields:
        yield from _split_at_prefixes(text, number)


def _decode_line(raw: bytes) -> str:
    """Return the text of a line without control characters and a spreadsheet's quotes."""
    text = raw.decode("utf-8", "replace").rstrip()
    if "\x1b" in text or not text.isprintable():
        text = PATTERNS["terminal_control"].sub("", text)
    if text.endswith('"') and (cell := PATTERNS["spreadsheet_cell"].match(text)):
        text = cell["text"].replace('""', '"')
    return text


def _split_at_prefixes(text: str, number: int) -> Iterator[LogMessage]:
    """Yield a message for each logger prefix in a line, and for the text before the first."""
    heads = _find_heads(text)
    if not heads:
        tag = _tag_of(text)
        yield LogMessage(number, tag, "", "", text[len(tag) :] if tag else text)
        return
    before = text[: heads[0].start()]
    tag = _tag_of(before)
    if before.strip() and len(before) > len(tag) + 3:
        yield LogMessage(number, tag, "", "", before)
    for place, head in enumerate(heads):
        end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
        file = head["file"] or head["absl_file"] or head["old_file"] or ""
        stamp = "" if head["old_file"] else head[0]
        yield LogMessage(number, tag, head["thread"] or "", file, text[head.end() : end], stamp)


def _find_heads(text: str) -> list[re.Match[str]]:
    """Return the logger's prefixes in a line; most lines have one, at the start."""
    first = _LOGGER_HEAD.match(text)
    if first is not None and not _MAYBE_HEAD.search(text, first.end()):
        return [first]
    if first is None and not _MAYBE_HEAD.search(text):
        return []
    return list(_LOGGER_HEAD.finditer(text))


def _tag_of(text: str) -> str:
    match = find("launcher_tag", text)
    return match["tag"] if match else ""


def _is_notebook(block: bytes) -> bool:
    head = block[:4096].lstrip()
    return head.startswith(b"{") and (b'"cells"' in head or b'"nbformat"' in head)


def _unescape(raw: bytes) -> bytes:
    if b"\\" not in raw:
        return raw

    def plain(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return chr(int(match[1], 16)).encode("utf-8", "replace")
        return _ESCAPES.get(match[2], match[2])

    return _ESCAPE.sub(plain, raw)
