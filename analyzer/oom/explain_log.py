"""The log as an ``OomDocument``: each failure with its figures, its cause and its advice.

Each line of the log goes to the reader of its kind.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from msgspec import convert, structs

from analyzer.model.contract.fields import numpy_name
from analyzer.model.contract.oom_file import (
    OomCard,
    OomDocument,
    OomFailure,
    OomPlan,
)
from analyzer.model.units import Range, format_bytes, times
from analyzer.oom.advice import find_advice, write_next_command
from analyzer.oom.allocator_lines import (
    take_allocator_line,
    take_dump_line,
    take_refusal,
)
from analyzer.oom.cause import find_cause, name_figures
from analyzer.oom.error_texts import (
    take_error_text,
    take_other_cause,
    take_report,
)
from analyzer.oom.failures import FailedAllocator, Log, LoggedFailure, Process
from analyzer.oom.figures import compute_figures, find_request, sizes_in_use
from analyzer.oom.lines import LogLine, read_lines
from analyzer.oom.wordings import NAMES, find, parse_count
from analyzer.report.output_files import ReportOutput

_MOST_NODES = 3  # lines that name nodes below an error's reason


def read_log(stream: BinaryIO, name: str) -> Log:
    """Read a log, or raise an InputError for a damaged gzip header."""
    log = Log()
    held: LogLine | None = (
        None  # the start of an error text that continues in the next line
    )

    for line in read_lines(stream, name):
        log.lines = line.number

        more = line.text.strip("> ")
        if held is not None:
            line = held._replace(text=f"{held.text.rstrip()} {more}")

        held = line if more and find("wrapped", line.text) else None
        if held is None and line.text:
            _take_line(log.process_of(line.tag), line)

    known = [
        one
        for one in log.failures
        if one.other_cause != "unknown"
        and (one.words or one.printed or one.has_error_text)  # not the end of a dump
    ]

    if log.bare_error is not None:
        process, line = log.bare_error
        failure = process.error

        if failure is None or not known:
            failure = process.add_failure(line, FailedAllocator.UNKNOWN)
            failure.has_error_text = True
            known = known or [failure]

        if not (failure.op or failure.requested_by):
            failure.op = process.node  # the log lacks the text that follows it

    log.failures = known or log.failures

    _move_tolerated(log)
    _join_repeated(log)

    return log


def _take_line(process: Process, line: LogLine) -> None:
    log = process.log
    is_read = (
        take_allocator_line(process, line)
        or take_dump_line(process, line)
        or take_refusal(process, line)
        or take_other_cause(process, line)
        or take_error_text(process, line)
        or _take_note(process, line.text)
    )
    reason = log.last_line or line
    if not line.text.lstrip().startswith("[["):
        log.last_line = reason = line
    elif line.number - reason.number > _MOST_NODES:
        reason = line  # the reader skips lines without a known word

    if not is_read:
        if not log.failures:
            take_report(process, line, "unknown")
        error = find("other_error", line.text)
        if error and not (error["end"] and log.other_error):  # the end for its error
            log.other_error = reason
        elif find("mention", line.text):
            log.mention = line


def _take_note(process: Process, text: str) -> bool:
    """Read a limit or a warning that explains later failures."""
    log = process.log

    if match := find("device_created", text):
        mib = parse_count(match["mib"])
        limit = Range(mib << 20, (mib + 1 << 20) - 1)
        log.cards[process.tag, match["index"]] = match["name"].strip(), limit
    elif match := find("large_allocation", text):
        log.large_allocation = max(log.large_allocation, parse_count(match["bytes"]))

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


_MOST_SIZES = 200  # of one failure
_LONGEST = 2000  # characters of a failure's text
_ERROR_MIDDLE = re.compile(r"(?<=^.{80}).{20,}(?=.{80}$)")  # of a long error


@dataclass(frozen=True, eq=False)
class OomReport(ReportOutput):
    """The explanation of a log: its JSON document, and its failures for the drawing."""

    report: OomDocument
    failures: list[LoggedFailure] = field(repr=False)


def read_oom_log(stream: BinaryIO, name: str) -> OomReport:
    """Read a log and explain it, or raise an InputError for a damaged gzip header."""
    log = read_log(stream, name)
    for failure in log.failures:
        _compute(failure, log)

    failures = tuple(map(_describe_failure, log.failures))

    document = OomDocument(
        log=name,
        lines=log.lines,
        headline=_write_headline(log, failures),
        failures=failures,
        failures_not_shown=log.more_failures,
        refusals=tuple(log.refusals),
        notes=tuple(_write_notes(log)),
        next_command=write_next_command(log.failures[0]) if log.failures else None,
    )

    return OomReport(document, log.failures)


def _compute(failure: LoggedFailure, log: Log) -> None:
    """Fill in what follows from the lines of a failure."""
    _find_card(failure, log)

    place = failure.allocator or failure.device.rstrip(":0123456789")
    is_host = place.lower().endswith("cpu") and not failure.has_dump
    if is_host and failure.kind is FailedAllocator.POOL:
        failure.kind = FailedAllocator.HOST

    if log.large_allocation and failure.other_cause in ("killed", "host"):
        failure.printed["asked"] = Range.exactly(log.large_allocation)

    failure.asked = find_request(failure)
    compute_figures(failure)
    failure.sizes = sizes_in_use(failure)


def _find_card(failure: LoggedFailure, log: Log) -> None:
    """Note the card that the allocator or the device names, or the only one if they name none."""
    device = failure.device.rpartition("/")[2].lower()
    if failure.is_on_host or "cpu" in device:
        return

    number = re.search(r"\d+", f"{failure.allocator} {device}")
    cards = [key for key in log.cards if key[0] == failure.process] or [*log.cards]

    for key in cards:
        if len(cards) == 1 if number is None else number[0] == key[1]:
            failure.card_name, failure.card_limit = log.cards[key]


def _describe_failure(failure: LoggedFailure) -> OomFailure:
    words = name_figures(failure)
    verdict = find_cause(failure, words)
    fields = {name: one or None for name, one in structs.asdict(failure).items()}
    ranges = {}

    for name in NAMES["figures"]:
        size: Range | None = fields[name.removesuffix("_bytes")]
        fields[name] = size and size.middle

        if size and not size.is_exact:
            ranges[name] = (size.low, size.high)

    plan = OomPlan(failure.plan_sums, tuple(failure.buffers))
    framework = failure.framework
    component = framework or "TensorFlow"

    if failure.is_compiled:
        component = f"{framework} (XLA)" if framework else "XLA"

    fields |= {
        "process": failure.process,
        "component": failure.component or component,
        "op": failure.op or failure.requested_by or failure.op_type or None,
        "dtype": numpy_name(failure.dtype) or None,
        "regions": len(failure.regions) or None,
        "ranges": ranges,
        "card": _describe_card(failure),
        "verdict": verdict,
        "sizes": failure.sizes[:_MOST_SIZES],
        "remedies": tuple(find_advice(failure, verdict.id, words)),
        "compiled": plan if plan.sums_bytes or plan.buffers else None,
        "words": failure.words[:_LONGEST],
    }

    return convert(fields, OomFailure)


def _describe_card(failure: LoggedFailure) -> OomCard | None:
    total = failure.card_memory
    free = failure.printed.get("free")

    if not failure.card_name and total is None:
        return None

    return OomCard(
        name=failure.card_name or None,
        total_bytes=total.middle if total else None,
        free_bytes=free.middle if free else None,
        is_from_catalogue=total is not None and "total" not in failure.printed,
    )


def _shorten(line: LogLine) -> str:
    return _ERROR_MIDDLE.sub(" … ", line.text.strip())


def _write_headline(log: Log, failures: tuple[OomFailure, ...]) -> str:
    count = len(failures) + log.more_failures
    if count:
        more = "" if count == 1 else f" The first of {count:,} failures."
        return f"{failures[0].verdict.title}{more}"

    found = "No line is known to report exhausted memory."
    if not (log.mention or log.other_error or log.large_allocation):
        found = "No out-of-memory failure in this log."

    run = min(log.refusals, key=lambda one: one.is_host, default=None)
    if run is not None:
        pool = "pinned host memory" if run.is_host else "the pool"
        found = (
            f"No tensor failed in this log, but the driver refused {pool} {times(run.times)}, "
            f"{format_bytes(run.last_bytes)} in the smallest request."
        )

    error = log.other_error
    if error is not None:
        return f"{found} The last error is line {error.number:,}: {_shorten(error)}"

    return found


def _write_notes(log: Log) -> Iterator[str]:
    if log.refusals and not log.failures:
        action = "If other processes hold the card (nvidia-smi or rocm-smi lists them), stop them"
        if all(run.is_host for run in log.refusals):
            action = (
                "Hold less host memory: shuffle buffers, caches, prefetched batches"
            )

        yield f"{action}. TensorFlow first tries smaller regions, so the run may go on."

    failed = {one.allocator for one in log.failures}

    for allocator, (count, largest) in log.tolerated.items():
        if allocator not in failed:
            yield (
                f"{allocator or 'An allocator'} warned {times(count)} of a failed request (at most "
                f"{largest}) that TensorFlow could do without; it prints at most ten such warnings."
            )

    if log.large_allocation and not log.failures:
        yield (
            f"TensorFlow asked for {format_bytes(log.large_allocation)} of host memory at once, "
            "a tenth or more of all or of the free memory: a warning, not by itself a failure."
        )

    line = log.mention
    if line is not None and not log.failures:
        yield f"Line {line.number:,} mentions memory: {_shorten(line)}"

    if log.last_line is None:  # no words of memory or of an error
        yield (
            "TensorFlow writes a failure to stderr; redirect both streams: "
            "python train.py > train.log 2>&1."
        )
