"""The lines of allocators: a failed request, the dump that follows, and refusals of the driver."""

from analyzer.model.contract.oom_file import OomRefusals
from analyzer.model.units import Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure, Process
from analyzer.oom.lines import LogLine
from analyzer.oom.wordings import (
    MOST_BYTES,
    NAMES,
    find,
    find_all,
    parse_count,
    parse_size,
    read_groups,
)

# Chunks that are stored of one dump; a pool of 80 GiB in chunks of 400 KiB has as many.
_MOST_CHUNKS = 200_000


def take_allocator_line(process: Process, line: LogLine) -> bool:
    """Read the line with which an allocator reports a failed request."""
    text = line.text
    match = find("allocator_failed", text)
    if match is None:
        return False

    fields = read_groups(match)
    allocator = fields.get("allocator", "")
    size = parse_size(fields["size"])

    if "rounded" in fields:
        most = max(parse_count(fields["rounded"]), 256)
        chunk = Range(most - 255, most)
        size = chunk if size is None else chunk.intersection(size) or chunk

    if find("not_a_failure", text):
        process.log.add_tolerated(allocator, size or Range.exactly(0))
        return True

    last = next(process.recent(), None)
    is_async = match["size_2"] is not None
    if is_async and last is not None and last.size == size and not last.has_error_text:
        last.used_sizes.clear()  # a convolution tries each algorithm
        return True

    op = fields.get("op", "").strip()
    failure = process.current.get(line.thread) if match["size_3"] else None
    if last is not None and last.size is None and last.op_type == op != "":
        failure = last  # a notebook prints the error before the streams

    failure = failure or process.add_failure(line)
    failure.stamp = line.stamp
    failure.size = size
    failure.allocator = allocator
    failure.requested_by = op
    failure.has_allocator_line = True

    if is_async:
        failure.kind = FailedAllocator.ASYNC

    process.select(line.thread, failure)

    return True


def take_refusal(process: Process, line: LogLine) -> bool:
    """Read a line about memory that the driver or the host refused."""
    match = find("refused", line.text)
    if match is None:
        return False

    ((place, printed),) = read_groups(match).items()
    is_host = place == "host"
    size_bytes = int(printed)
    error = process.log.other_error

    if error is not None and printed in error.text:
        return True  # the driver failed for another reason

    for run in process.refusals:
        if run.is_host == is_host:
            run.times += "could not" not in line.text
            run.first_bytes = max(run.first_bytes, size_bytes)
            run.last_bytes = min(run.last_bytes, size_bytes)

            return True

    run = OomRefusals(line.number, size_bytes, size_bytes, 1, is_host, process.tag)
    process.refusals.append(run)
    process.log.refusals.append(run)

    return True


def take_dump_line(process: Process, line: LogLine) -> bool:
    """Read a line of a dump; return False if it is none."""
    text = line.text
    is_named = "bfc_allocator" in line.file + text
    owner = process.current.get(line.thread)

    if head := find("dump_head", text):
        name = head["allocator"]
        owner = _find_waiting(process)
        if owner is None or owner.allocator not in ("", name):
            owner = _start_dump(process, line)

        owner.allocator = name
        process.select(line.thread, owner)

        return True

    cells = find("map", text)

    if owner is None:
        is_start = cells or text.endswith("Stats:")
        if not (is_named and is_start) and not find("dump_start", text):
            return False

        owner = _find_waiting(process) or _start_dump(process, line)
        process.select(line.thread, owner)

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


def _find_waiting(process: Process) -> LoggedFailure | None:
    """Return the latest failure that has no dump yet."""
    return next(
        (one for one in process.recent() if not (one.has_dump or one.other_cause)),
        None,
    )


def _start_dump(process: Process, line: LogLine) -> LoggedFailure:
    """Add a failure whose dump is all that the log has."""
    failure = process.add_failure(line)
    failure.words = ""

    return failure


def _add_line(failure: LoggedFailure, text: str) -> bool:
    """Add one line of a dump; return False if the line is not part of a dump."""
    if match := find("chunk", text):
        size_bytes = int(match["bytes"])
        if size_bytes <= MOST_BYTES and len(failure.chunks) < _MOST_CHUNKS:
            is_used = match["state"] != "Free"
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
    size_bytes = parse_count(size)
    times = parse_count(count)
    if size_bytes * times <= MOST_BYTES:
        failure.used_sizes[size_bytes] = times


def _add_size_class(failure: LoggedFailure, used: str, requested: str) -> None:
    """Add what the chunks of one size class take beyond the requests."""
    used_size = parse_size(used)
    requested_size = parse_size(requested)
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
        found[stat["name"]] = stat["size"]

    for printed_name, printed in found.items():
        name = NAMES["stats"].get(printed_name, printed_name)
        size = parse_size(printed)
        is_unlimited = name == "limit" and size == Range.exactly(0)
        if size is not None and not is_unlimited:
            known = failure.printed.get(name, size)
            failure.printed[name] = known.intersection(size) or known

    return bool(found)
