"""A log as a list of failures: each line goes to the reader of its kind."""

from typing import BinaryIO, Final

from analyzer.model.contract.fields import MOST_BYTES
from analyzer.model.contract.report.oom_file import OomRefusals
from analyzer.model.ranges import Range
from analyzer.oom.dump_lines import take_async_line, take_dump_line
from analyzer.oom.error_texts import take_error_text
from analyzer.oom.failures import Card, FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.lines import LogLine, read_lines
from analyzer.oom.other_causes import take_other_cause, take_unknown_cause
from analyzer.oom.wordings import find, find_any, parse_count, parse_size

_MOST_MIB: Final = 1 << 30  # 1 PiB
_BACK_OFF: Final = 0.8
"""A refused request of at least this share of the last one continues the run: the pool asks for a
tenth less each time (``BFCAllocator::Extend``)."""


def read_log(stream: BinaryIO, name: str = "") -> Log:
    """Read a log, or raise an InputError for a damaged gzip header."""
    log = Log()
    for line in read_lines(stream, name):
        log.lines = line.number
        _take_line(log, line)

    _move_tolerated(log)
    _join_repeated(log)
    return log


def _take_line(log: Log, line: LogLine) -> None:
    process = log.process_of(line.tag)
    if not line.text.strip():
        return

    is_read = (
        _take_allocator_line(log, process, line)
        or take_dump_line(log, process, line)
        or take_async_line(log, process, line)
        or _take_refusal(log, process, line)
        or take_other_cause(log, process, line)
        or take_error_text(log, process, line)
    )
    if not is_read:
        _take_card(log, process, line.text)
        _take_budget(log, line.text)
        take_unknown_cause(log, process, line)


def _take_allocator_line(log: Log, process: Process, line: LogLine) -> bool:
    """Read the line with which an allocator reports a failed request."""
    text = line.text
    if find("garbage_collection", text):
        log.garbage_collections += 1
        return True

    match = find("allocator_failed", text)
    if match is None:
        return False

    size = parse_size(match["size"])

    if find("not_a_failure", text):
        log.add_tolerated(match["allocator"], size or Range.exactly(0))
        return True

    process.refusal = None
    failure = log.add_failure(process, line, reports=1)
    failure.stamp = line.stamp
    rounded = parse_size(match["rounded"])
    failure.size = size
    failure.rounded_bytes = rounded.low if rounded else None
    failure.allocator = match["allocator"]
    failure.has_allocator_line = True
    # a copied line may continue with TensorFlow's advice
    op = (match["op"] or "").partition("If the cause")[0].strip()
    failure.requested_by = op.removeprefix("<null>")
    process.select(line.thread, failure)
    return True


def _take_refusal(log: Log, process: Process, line: LogLine) -> bool:
    """Read a line about memory that the driver or the host refused."""
    refused = find("driver_refused", line.text)
    match = refused or find_any(("host_refused", "pinned_refused"), line.text)
    if match is None:
        return False

    is_host = refused is None
    fields = match.groupdict()
    size_bytes = min(int(fields["bytes"] or fields["unified"]), MOST_BYTES)

    run = process.refusal
    most = run.last_bytes if run is not None and run.is_host == is_host else 0
    if run is not None and _BACK_OFF * most < size_bytes <= most:
        run.times += size_bytes != run.last_bytes or not is_host
        run.last_bytes = size_bytes
        return True

    code = fields.get("code", "").strip()[:200]
    run = OomRefusals(
        line.number, size_bytes, size_bytes, 1, code, is_host, process.tag
    )
    process.refusal = run
    log.refusals.append(run)

    if not is_host:
        process.refusals.append(run)
    return True


def _take_card(log: Log, process: Process, text: str) -> None:
    """Read the limit that TensorFlow sets for a card at its start."""
    match = find("device_created", text)
    if match is not None:
        mib = min(parse_count(match["mib"]), _MOST_MIB)
        limit = Range(mib << 20, (mib + 1 << 20) - 1)
        index, name = parse_count(match["index"]), match["name"].strip()
        log.cards.append(Card(index, process.tag, name, limit))


def _take_budget(log: Log, text: str) -> None:
    """Read XLA's budget for a program."""
    match = find("xla_budget", text)
    if match is not None:
        budget, reached = parse_size(match["budget"]), parse_size(match["reached"])
        if budget is not None and reached is not None:
            log.xla_budgets.append((budget.low, reached.low))


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
            log.add_tolerated(failure.allocator, failure.size, failure.reports)


def _join_repeated(log: Log) -> None:
    """Join requests that were repeated without an error in the same state of the allocator.

    XLA's autotuner repeats a request for each algorithm, and the allocator waits up to 10 s each time.
    Lines with the same time are the same line, such as an excerpt before the whole log.
    """
    rows: list[LoggedFailure] = []
    stamps: dict[object, int] = {}
    last: object = None

    for one in log.failures:
        state = (
            one.process,
            one.allocator,
            one.size,
            one.requested_by,
            one.printed,
            one.map,
        )
        is_open = one.kind is FailedAllocator.POOL and not one.has_error_text
        is_repeated = is_open and one.has_allocator_line and state == last
        last = state if is_open else None
        stamp = (one.stamp, one.text)
        place = stamps.get(stamp, -1 if is_repeated else len(rows))

        if one.stamp:
            stamps.setdefault(stamp, place)

        if place == len(rows):
            rows.append(one)
            continue

        known = rows[place]
        reports = known.reports + one.reports

        if not known.has_dump:
            rows[place] = one

        rows[place].reports = reports

    log.failures = rows
