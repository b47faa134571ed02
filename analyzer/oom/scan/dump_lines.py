"""One line of an allocator's dump, or of a program's list of buffers, added to its record."""

from __future__ import annotations

import re
from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.amounts import MOST_BYTES, parse_count, parse_size
from analyzer.oom.log_records import (
    AllocatorDump,
    DumpedBin,
    DumpedChunk,
    PeakBuffer,
    XlaBuffers,
)
from analyzer.oom.scan.patterns import find, find_all

MOST_CHUNKS: Final = 200_000
"""Chunks that are stored of one dump; a pool of 80 GiB in chunks of 400 KiB has as many."""
_MOST_ROWS: Final = 20_000  # regions, rows of the summary, free chunks of a size class
_MOST_BINS: Final = 64
_MOST_BUFFERS: Final = 64  # of a program
_LONGEST: Final = 200  # characters of a label or a shape


def add_dump_line(dump: AllocatorDump, text: str) -> bool:
    """Add one line to the dump; return False if the line is not part of a dump."""
    if "of size" in text or "llocator dump" in text:
        return _add_chunk(dump, text)
    if "Bin " in text or "in_use:" in text:
        return _add_bin(dump, text)
    if "Sum Total" in text or "memory_limit_" in text or "memory summary" in text:
        return _add_sum(dump, text)
    if find("summary_head", text):
        return True
    stats = find_all("stat", text)
    for match in stats:
        size = parse_size(match["size"])
        if size is not None and size.low >= 0:
            dump.stats.setdefault(match["name"], size)
    cells = None if stats else find("map", text)
    if cells:
        dump.map = cells["cells"]
    return bool(stats or cells)


def _add_chunk(dump: AllocatorDump, text: str) -> bool:
    if match := find("chunk", text):
        size_bytes = int(match["bytes"])
        if size_bytes > MOST_BYTES:
            return True
        if len(dump.chunks) >= MOST_CHUNKS:
            dump.omitted_chunks += 1
            return True
        region = max(len(dump.regions) - 1, 0)
        is_used = match["state"] != "Free"
        dump.chunks.append(DumpedChunk(int(match["address"], 16), size_bytes, is_used, region))
    elif match := find("summary_row", text):
        size_bytes, count = map(parse_count, match.group("bytes", "count"))
        if len(dump.summary) < _MOST_ROWS and size_bytes * count <= MOST_BYTES:
            dump.summary.append((size_bytes, count))
    elif match := find("region", text):
        if len(dump.regions) < _MOST_ROWS:
            dump.regions.append(parse_count(match["bytes"]))
    elif match := find("dump_head", text):
        dump.allocator = match["allocator"]
    return match is not None


def _add_bin(dump: AllocatorDump, text: str) -> bool:
    if match := find("dump_bin", text):
        total, used, requested = (
            parse_size(match[name]) for name in ("total", "used", "requested")
        )
        if len(dump.bins) < _MOST_BINS and total and used and requested and total.high < 1 << 50:
            dump.bins.append(
                DumpedBin(
                    size_bytes=parse_count(match["bytes"]),
                    chunks=parse_count(match["chunks"]),
                    used_chunks=parse_count(match["used_chunks"]),
                    total=total,
                    used=used,
                    requested=requested,
                    counts_all=bool(match["dot"]),
                )
            )
        return True
    if find("wanted_bin", text):
        return True
    match = find("chunk_state", text)
    if match and match["in_use"] == "0" and len(dump.free_in_bin) < _MOST_ROWS:
        size = parse_size(match["size"])
        if size is not None:
            dump.free_in_bin.append(size)
    return match is not None


def _add_sum(dump: AllocatorDump, text: str) -> bool:
    if match := find("summary_total", text):
        dump.used = _parse_positive(match["size"])
    elif match := find("pool_line", text):
        dump.pool, dump.limit, dump.left = map(
            _parse_positive, match.group("pool", "limit", "left")
        )
    elif match := find("pool_summary", text):
        for part in find_all("pool_summary_part", match["parts"]):
            _add_summary_part(dump, part)
    return match is not None


def _add_summary_part(dump: AllocatorDump, part: re.Match[str]) -> None:
    name, size = part["name"], _parse_positive(part["size"])
    if name == "unallocated bytes":
        dump.left = size
    elif name == "pool size":
        dump.pool = size
    elif name == "pool limit":
        dump.limit = size
    elif name.startswith("largest"):
        known = [one for one in (dump.largest_free, size) if one is not None]
        dump.largest_free = max(known, key=_middle, default=None)


def _middle(size: Range) -> int:
    return size.middle


def _parse_positive(text: str) -> Range | None:
    size = parse_size(text)
    return None if size is None or size.low < 0 else size


def add_buffer(xla: XlaBuffers, text: str) -> bool:
    """Add a line of the list of buffers; return False if it is none."""
    stat = find("xla_stat", text) or find("tpu_stat", text)
    if stat is not None:
        fields = {
            name.partition("_")[0]: value for name, value in stat.groupdict().items() if value
        }
        size = parse_size(fields["size"])
        if size is not None:
            xla.stats.setdefault(fields["name"], size)
        return True
    if find("xla_buffer", text) and len(xla.buffers) < _MOST_BUFFERS:
        xla.buffers.append(PeakBuffer(Range.exactly(0)))
    field = find("xla_field", text)
    if field is None or not xla.buffers:
        return find("xla_buffer", text) is not None
    _set_field(xla.buffers[-1], field["name"], field["value"].strip())
    return True


def _set_field(buffer: PeakBuffer, name: str, value: str) -> None:
    """Set the field of a buffer that the list prints under this name."""
    size = parse_size(value.partition(" ")[0])
    if name == "Size":
        buffer.size = size or buffer.size
    elif name.startswith("Extra memory"):
        buffer.padding = size
    elif name == "Operator":
        op = find("xla_op", value)
        buffer.operator = op["name"][: 2 * _LONGEST] if op else value[: 2 * _LONGEST]
    elif name in ("XLA Label", "XLA label"):
        buffer.label = value[:_LONGEST]
    else:
        buffer.shape = value[:_LONGEST]
        buffer.label = buffer.label or ("parameter" if "Parameter" in name else "")
