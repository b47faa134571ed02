"""The lines of an allocator's dump, added to the failure that they belong to."""

import re
from typing import Final

from analyzer.model.contract.report.oom_file import OomBuffer
from analyzer.model.ranges import Range
from analyzer.oom.failures import Chunk, FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    MOST_BYTES,
    find,
    find_all,
    find_any,
    parse_count,
    parse_positive,
    parse_size,
    read_groups,
)

_MOST_CHUNKS: Final = 200_000
"""Chunks that are stored of one dump; a pool of 80 GiB in chunks of 400 KiB has as many."""
_MOST_ROWS: Final = 20_000  # regions, rows of the summary
_MOST_BUFFERS: Final = 64  # of a program
_LONGEST: Final = 200  # characters of a label or a shape

_UNASKED: Final = ("chunk", "summary_row", "summary_total", "pool_line", "stat_alone")
"""Lines that belong to a dump even if the log lacks its start."""
_FIGURES: Final = {
    "Limit": "limit",
    "InUse": "in_use",
    "MaxInUse": "peak_in_use",
    "rounded request": "",
    "total free in pool": "free",
    "unallocated bytes": "room",
    "pool size": "pool",
    "pool limit": "limit",
}
"""Names of the figures that the dump prints."""


def take_dump_line(log: Log, process: Process, line: LogLine) -> bool:
    """Read a line of a dump; return False if it is none."""
    text = line.text
    is_named = "bfc_allocator" in line.file + text
    cells = find("map", text)
    owner = _find_owner(log, process, line, has_cells=is_named and cells is not None)
    if owner is None:
        return False
    if cells and (owner.map or not (is_named or owner.has_dump)):
        return False  # such as a ruler of any program

    had_map = bool(owner.map)

    if not _add_line(owner, text):
        return False
    if owner.map and not had_map and owner.has_allocator_line:
        process.current.pop(line.thread, None)  # the map ends a dump
    return True


def _find_owner(
    log: Log, process: Process, line: LogLine, *, has_cells: bool
) -> LoggedFailure | None:
    """Return the failure that a dump line belongs to; None if no dump is being read."""
    text, thread = line.text, line.thread
    owner = process.owner(thread)
    head = find("dump_head", text)
    if head is not None:
        name = head["allocator"]
        owner = log.find_waiting(process, name) or start_dump(log, process, line, name)
        owner.allocator = owner.allocator or name
        process.select(thread, owner)
        return owner

    if owner is None:
        is_stats = "bfc_allocator" in line.file and text.rstrip().endswith("Stats:")
        if has_cells or is_stats or find_any(_UNASKED, text):
            owner = start_dump(log, process, line)

    return owner


def start_dump(
    log: Log, process: Process, line: LogLine, allocator: str = ""
) -> LoggedFailure:
    """Add a failure whose dump is all that the log has."""
    failure = log.add_failure(process, line, reports=1)
    failure.allocator = allocator
    failure.text = ""
    process.select(line.thread, failure)
    return failure


def _add_line(failure: LoggedFailure, text: str) -> bool:
    """Add one line of a dump; return False if the line is not part of a dump."""
    if "of size" in text:
        return _add_chunks(failure, text)
    if "Sum Total" in text or "memory_limit_" in text or "memory summary" in text:
        return _add_sum(failure, text)

    if match := find("size_class", text):
        _add_size_class(failure, match)
        return True

    if find_any(("dump_heading", "dump_head"), text):
        return True

    stats = find_all("stat", text)
    for match in stats:
        size = parse_positive(match["size"])
        name = _FIGURES.get(match["name"], "")
        if name and size is not None:
            narrow_figure(failure, name, size)

    cells = None if stats else find("map", text)
    if cells:
        failure.map = cells["cells"]
    return bool(stats or cells)


def narrow_figure(failure: LoggedFailure, name: str, size: Range) -> None:
    """Note a printed figure; of two that agree, the more precise part is kept."""
    known = failure.printed.get(name, size)
    failure.printed[name] = known.intersection(size) or known


def _add_chunks(failure: LoggedFailure, text: str) -> bool:
    """Add a chunk, a row of the list of sizes in use, or the start of a region."""
    if match := find("chunk", text):
        size_bytes = int(match["bytes"])
        if len(failure.chunks) >= _MOST_CHUNKS:
            failure.omitted_chunks += 1
        elif size_bytes <= MOST_BYTES:
            address = int(match["address"], 16)
            failure.chunks.append(Chunk(address, size_bytes, match["state"] == "InUse"))
    elif match := find("summary_row", text):
        add_used_size(failure, match["bytes"], match["count"])
    elif match := find("region", text):
        failure.regions.append(parse_count(match["bytes"]))

    return match is not None


def add_used_size(failure: LoggedFailure, size: str, count: str) -> None:
    """Add a row of the list of sizes in use."""
    size_bytes, times = parse_count(size), parse_count(count)
    if len(failure.used_sizes) < _MOST_ROWS and size_bytes * times <= MOST_BYTES:
        failure.used_sizes.append((size_bytes, times))


def _add_size_class(failure: LoggedFailure, match: re.Match[str]) -> None:
    """Add what the chunks of one size class take beyond the requests."""
    used, requested = map(parse_positive, match.group("used", "requested"))
    if used is None or requested is None or used.high > MOST_BYTES:
        return

    failure.size_classes += 1
    failure.waste = failure.waste or Range.exactly(0)

    if used != requested:
        failure.waste += (used - requested).at_least(0)


def _add_sum(failure: LoggedFailure, text: str) -> bool:
    """Add the sum of the chunks in use, or the size and the limit of the pool."""
    found: list[tuple[str, str]] = []
    if match := find("summary_total", text):
        found = [("in_use", match["size"])]
    elif match := find("pool_line", text):
        found = [(name, match[name]) for name in ("pool", "limit", "room")]

    elif match := find("pool_summary", text):
        parts = find_all("pool_summary_part", match["parts"])
        found = [
            (_FIGURES.get(part["name"], "largest_hole"), part["size"]) for part in parts
        ]

    for name, printed in found:
        size = parse_positive(printed)
        if name and size is not None:
            narrow_figure(failure, name, size)

    return match is not None


def take_async_line(log: Log, process: Process, line: LogLine) -> bool:
    """Read a line of CUDA's asynchronous allocator; return False if it is none."""
    text = line.text
    if match := find("async_failed", text):
        size = parse_size(match["bytes"]) or Range.exactly(0)
        _take_async_failure(log, process, line, match["allocator"] or "", size)
        return True

    owner = process.owner(line.thread)
    is_head = find("histogram_head", text) is not None
    if is_head and (owner is None or owner.kind is not FailedAllocator.ASYNC):
        owner = start_dump(log, process, line)  # a histogram follows failures only
        owner.kind = FailedAllocator.ASYNC

    if owner is None or owner.kind is not FailedAllocator.ASYNC:
        return False

    if is_head:
        if not owner.used_sizes:
            owner.histogram_thread = line.thread
        return True

    if match := find("card_free", text):
        owner.card_free, owner.card_total = map(
            parse_count, match.group("free", "total")
        )
        return True

    if row := find("histogram_row", text):
        if line.thread == owner.histogram_thread:  # several threads may print at once
            add_used_size(owner, row["bytes"], row["count"])
        return True

    return find("pool_attribute", text) is not None


def _take_async_failure(
    log: Log, process: Process, line: LogLine, allocator: str, size: Range
) -> None:
    """Count a repeated request of the asynchronous allocator, or start a failure."""
    last = log.latest_of(process)
    is_same = False

    if last is not None and last.kind is FailedAllocator.ASYNC:
        is_same = (last.size, last.allocator) == (size, allocator)

    if last is not None and is_same and not last.has_error_text:
        last.reports += 1
        last.used_sizes.clear()
        last.printed.clear()
    else:
        process.refusal = None
        last = log.add_failure(process, line, FailedAllocator.ASYNC, reports=1)
        last.size = size
        last.allocator = allocator
        last.has_allocator_line = True

    process.select(line.thread, last)


def add_buffer(failure: LoggedFailure, text: str) -> bool:
    """Add a line of XLA's list of buffers; return False if it is none."""
    stat = find("xla_stat", text)
    if stat is not None:
        fields = read_groups(stat)
        size = parse_size(fields["size"])
        if size is not None:
            failure.plan_sums.setdefault(fields["name"], size.middle)
        return True

    if find("xla_buffer", text):
        if len(failure.buffers) < _MOST_BUFFERS:
            failure.buffers.append(OomBuffer(0, "", "", ""))
        return True

    field = find("xla_field", text)
    if field is None or not failure.buffers:
        return False

    _fill_buffer(failure.buffers[-1], field["name"], field["value"].strip())
    return True


def _fill_buffer(buffer: OomBuffer, name: str, value: str) -> None:
    if name == "Size":
        size = parse_size(value.partition(" ")[0])
        buffer.size_bytes = size.middle if size else buffer.size_bytes
    elif name == "Operator":
        op = find("xla_op", value)
        operator = op["name"] if op else value
        buffer.operator = operator[: 2 * _LONGEST]
    elif name.lower() == "xla label":
        buffer.label = value[:_LONGEST]
    else:
        buffer.shape = value[:_LONGEST]
        if "Parameter" in name:
            buffer.label = buffer.label or "parameter"
