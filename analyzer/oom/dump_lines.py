"""The lines of an allocator's dump, added to the failure that they belong to."""

from typing import Final

from analyzer.model.contract.report.oom_file import OomBuffer
from analyzer.model.ranges import Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    MOST_BYTES,
    find,
    find_all,
    parse_count,
    parse_size,
    read_groups,
)

_MOST_CHUNKS: Final = 200_000
"""Chunks that are stored of one dump; a pool of 80 GiB in chunks of 400 KiB has as many."""
_MOST_ROWS: Final = 20_000  # regions, rows of the summary
_MOST_BUFFERS: Final = 64  # of a program

_FIGURES: Final = {"Limit": "limit", "InUse": "in_use", "MaxInUse": "peak_in_use"}
"""Names of the figures that the dump prints."""


def take_dump_line(process: Process, line: LogLine) -> bool:
    """Read a line of a dump; return False if it is none."""
    text = line.text
    is_named = "bfc_allocator" in line.file + text
    owner = process.current.get(line.thread)

    if head := find("dump_head", text):
        name = head["allocator"]
        waiting = (one for one in process.recent() if not one.has_dump)
        owner = next(waiting, None)
        if owner is None or owner.allocator not in ("", name):
            owner = _start_dump(process, line)

        owner.allocator = owner.allocator or name
        process.select(line.thread, owner)
        return True

    cells = find("map", text)

    if owner is None:
        is_start = cells is not None or text.rstrip().endswith("Stats:")
        if not (is_named and is_start) and not find("dump_start", text):
            return False

        owner = _start_dump(process, line)
        if "Histogram" in text:
            owner.kind = FailedAllocator.ASYNC

    if cells is None:
        return _add_line(owner, text)
    if owner.map or not (is_named or owner.has_dump):
        return False  # such as a ruler of any program

    owner.map = cells["cells"]
    if owner.has_allocator_line:
        process.current.pop(line.thread, None)  # the map ends a dump
    return True


def _start_dump(process: Process, line: LogLine) -> LoggedFailure:
    """Add a failure whose dump is all that the log has."""
    failure = process.add_failure(line)
    failure.words = ""
    process.select(line.thread, failure)
    return failure


def _add_line(failure: LoggedFailure, text: str) -> bool:
    """Add one line of a dump; return False if the line is not part of a dump."""
    if match := find("chunk", text):
        size_bytes = int(match["bytes"])
        if size_bytes <= MOST_BYTES and len(failure.chunks) < _MOST_CHUNKS:
            is_used = match["state"] == "InUse"
            failure.chunks.append((int(match["address"], 16), size_bytes, is_used))
    elif match := find("summary_row", text):
        _add_used_size(failure, match["bytes"], match["count"])
    elif match := find("region", text):
        failure.regions.append(parse_count(match["bytes"]))
    elif match := find("size_class", text):
        _add_size_class(failure, match["used"], match["requested"])
    elif failure.kind is FailedAllocator.ASYNC and find("histogram_row", text):
        _add_used_size(failure, *text.split(","))
    elif not find("dump_heading", text):
        return _add_figures(failure, text)

    return True


def _add_used_size(failure: LoggedFailure, size: str, count: str) -> None:
    """Add a row of the list of sizes in use."""
    size_bytes, times = parse_count(size), parse_count(count)
    if len(failure.used_sizes) < _MOST_ROWS and size_bytes * times <= MOST_BYTES:
        failure.used_sizes[size_bytes] = times


def _add_size_class(failure: LoggedFailure, used: str, requested: str) -> None:
    """Add what the chunks of one size class take beyond the requests."""
    used_size, requested_size = parse_size(used), parse_size(requested)
    if used_size is None or requested_size is None or used_size.high > MOST_BYTES:
        return

    failure.size_classes += 1
    failure.waste = failure.waste or Range.exactly(0)

    if used != requested:
        failure.waste += (used_size - requested_size).at_least(0)


def _add_figures(failure: LoggedFailure, text: str) -> bool:
    """Add the sums of a dump; of two that agree, the more precise part is kept."""
    match = find("sums", text)
    found = read_groups(match) if match else {}

    for stat in find_all("stat", text):
        found[_FIGURES.get(stat["name"], "")] = stat["size"]

    for name, printed in found.items():
        size = parse_size(printed)
        if name and size is not None:
            known = failure.printed.get(name, size)
            failure.printed[name] = known.intersection(size) or known

    return bool(found)


def add_buffer(failure: LoggedFailure, text: str) -> bool:
    """Add a line of XLA's list of buffers; return False if it is none."""
    if match := find("xla_stat", text):
        size = parse_size(match["size"])
        if size is not None:
            failure.plan_sums.setdefault(match["name"], size.middle)
        return True

    if find("xla_buffer", text):
        if len(failure.buffers) < _MOST_BUFFERS:
            failure.buffers.append(OomBuffer(0, "", "", ""))
        return True

    match = find("xla_field", text)
    if match is None or not failure.buffers:
        return False

    buffer, fields = failure.buffers[-1], read_groups(match)
    size = parse_size(fields.get("size"))
    buffer.size_bytes = size.middle if size else buffer.size_bytes
    buffer.operator = fields.get("operator", buffer.operator)
    buffer.label = fields.get("label", buffer.label)
    buffer.shape = fields.get("shape", buffer.shape)
    return True
