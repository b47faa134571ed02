"""A log as a list of failures: each line goes to the reader of its kind."""

from typing import BinaryIO, Final

from analyzer.model.contract.fields import MOST_BYTES
from analyzer.model.contract.report.oom_file import OomRefusals
from analyzer.model.ranges import Range
from analyzer.oom.dump_lines import take_dump_line
from analyzer.oom.error_texts import take_error_text
from analyzer.oom.failures import FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.lines import LogLine, read_lines
from analyzer.oom.other_causes import take_other_cause, take_unknown_cause
from analyzer.oom.wordings import find, parse_count, parse_size

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
        _take_allocator_line(process, line)
        or take_dump_line(process, line)
        or _take_refusal(process, line)
        or take_other_cause(process, line)
        or take_error_text(process, line)
        or _take_note(process, line.text)
    )
    if not is_read:
        take_unknown_cause(process, line)
        if find("other_error", line.text):
            process.log.other_error = line


def _take_allocator_line(process: Process, line: LogLine) -> bool:
    """Read the line with which an allocator reports a failed request."""
    text = line.text
    match = find("allocator_failed", text)
    if match is None:
        return False

    size = parse_size(match["size"] or match["bytes"])
    if match["rounded"]:
        most = max(parse_count(match["rounded"]), 256)
        chunk = Range(most - 255, most)
        size = chunk if size is None else chunk.intersection(size) or chunk

    if find("not_a_failure", text):
        process.log.add_tolerated(match["allocator"], size or Range.exactly(0))
        return True

    last = next(process.recent(), None)
    is_async = match["bytes"] is not None
    is_repeated = is_async and last is not None and last.size == size
    if is_repeated and last is not None and not last.has_error_text:
        last.used_sizes.clear()  # a convolution tries each algorithm
        return True

    failure = process.add_failure(line)
    failure.stamp = line.stamp
    failure.size = size
    failure.allocator = match["allocator"] or match["async"] or ""
    failure.has_allocator_line = True

    if is_async:
        failure.kind = FailedAllocator.ASYNC
    # a copied line may continue with TensorFlow's advice
    op = (match["op"] or "").partition("If the cause")[0].strip()
    failure.requested_by = op.removeprefix("<null>")
    process.select(line.thread, failure)
    return True


def _take_refusal(process: Process, line: LogLine) -> bool:
    """Read a line about memory that the driver or the host refused."""
    match = find("refused", line.text)
    if match is None:
        return False

    printed = match["bytes"] or match["unified"] or match["host"] or match["pinned"]
    is_host = match["bytes"] is None and match["unified"] is None
    size_bytes = min(int(printed), MOST_BYTES)

    for run in process.refusals:
        if run.is_host == is_host:
            run.times += size_bytes != run.last_bytes or not is_host
            run.first_bytes = max(run.first_bytes, size_bytes)
            run.last_bytes = min(run.last_bytes, size_bytes)
            return True

    run = OomRefusals(line.number, size_bytes, size_bytes, 1, is_host, process.tag)
    process.refusals.append(run)
    process.log.refusals.append(run)
    return True


def _take_note(process: Process, text: str) -> bool:
    """Read a limit or a warning that explains later failures."""
    log = process.log

    if match := find("device_created", text):
        mib = min(parse_count(match["mib"]), _MOST_MIB)
        limit = Range(mib << 20, (mib + 1 << 20) - 1)
        name = match["name"].strip()
        log.cards.append((process.tag, parse_count(match["index"]), name, limit))
    elif match := find("xla_budget", text):
        budget, reached = int(match["budget"]), int(match["reached"])
        if budget < reached:
            log.budget = max(log.budget, (budget, reached))
    elif match := find("large_allocation", text):
        size_bytes = parse_count(match["bytes"])
        log.large_allocation = max(log.large_allocation, size_bytes)
    elif match := find("pod_resources", text):
        process.is_in_limits = match["name"].lower() == "limits"
    elif process.is_in_limits and (match := find("pod_memory", text)):
        log.pod_limit = parse_size(match["limit"])

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
