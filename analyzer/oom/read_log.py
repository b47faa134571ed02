"""A log as a list of failures: each line goes to the reader of its kind."""

from typing import BinaryIO, Final

from analyzer.model.ranges import Range
from analyzer.oom.allocator_lines import (
    take_allocator_line,
    take_dump_line,
    take_refusal,
)
from analyzer.oom.error_texts import (
    take_error_text,
    take_other_cause,
    take_report,
)
from analyzer.oom.failures import FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.lines import LogLine, read_lines
from analyzer.oom.wordings import find, parse_count

_MOST_MIB: Final = 1 << 30  # 1 PiB


def read_log(stream: BinaryIO, name: str = "") -> Log:
    """Read a log, or raise an InputError for a damaged gzip header."""
    log = Log()

    for line in read_lines(stream, name):
        log.lines = line.number
        if line.text.strip():
            _take_line(log.process_of(line.tag), line)

    if log.bare_error is not None and not log.failures:
        process, line = log.bare_error
        failure = process.add_failure(line, FailedAllocator.UNKNOWN)
        failure.has_error_text = True

    _move_tolerated(log)
    _join_repeated(log)

    return log


def _take_line(process: Process, line: LogLine) -> None:
    is_read = (
        take_allocator_line(process, line)
        or take_dump_line(process, line)
        or take_refusal(process, line)
        or take_other_cause(process, line)
        or take_error_text(process, line)
        or _take_note(process, line.text)
    )
    if not is_read:
        if not process.log.failures:
            take_report(process, line, "unknown")
        if find("other_error", line.text):
            process.log.other_error = line


def _take_note(process: Process, text: str) -> bool:
    """Read a limit or a warning that explains later failures."""
    log = process.log

    if match := find("device_created", text):
        mib = min(parse_count(match["mib"]), _MOST_MIB)
        limit = Range(mib << 20, (mib + 1 << 20) - 1)
        name = match["name"].strip()
        log.cards.append((process.tag, parse_count(match["index"]), name, limit))
    elif match := find("xla_budget", text):
        budget = int(match["budget"])
        reached = int(match["reached"])
        if budget < reached:
            log.budget = max(log.budget, (budget, reached))
    elif match := find("large_allocation", text):
        size_bytes = parse_count(match["bytes"])
        log.large_allocation = max(log.large_allocation, size_bytes)

    return match is not None


def _move_tolerated(log: Log) -> None:
    """Move requests of the asynchronous allocator without an error to the tolerated ones.

    It also logs requests with which a convolution tries an algorithm
    (``gpu_cudamallocasync_allocator.cc``). If others led to an error, these did not.
    """
    requests = [one for one in log.failures if one.kind is FailedAllocator.ASYNC]
    if not any(failure.has_error_text for failure in requests):
        return

    for failure in requests:
        if not failure.has_error_text and failure.size is not None:
            log.failures.remove(failure)
            log.add_tolerated(failure.allocator, failure.size)


def _join_repeated(log: Log) -> None:
    """Join failures whose lines have the same time: copies of one line, such as an excerpt."""
    rows: dict[object, LoggedFailure] = {}

    for failure in log.failures:
        key = (failure.stamp, failure.words) if failure.stamp else id(failure)
        if not rows.setdefault(key, failure).has_dump:
            rows[key] = failure

    log.failures = list(rows.values())
