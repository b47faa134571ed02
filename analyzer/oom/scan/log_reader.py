"""The messages of a log as records; each failed request becomes one record."""

from __future__ import annotations

from typing import BinaryIO, Final

from analyzer.model.ranges import Range
from analyzer.oom.amounts import MOST_BYTES, parse_count, parse_size
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedFailure,
    LogRecords,
    RefusalRun,
    RequestedTensor,
)
from analyzer.oom.scan.components import finish_components, take_component, take_unknown
from analyzer.oom.scan.dump_lines import MOST_CHUNKS, add_dump_line, take_start_line
from analyzer.oom.scan.error_texts import join_texts, take_error_text
from analyzer.oom.scan.lines import LogMessage, read_messages
from analyzer.oom.scan.patterns import find, find_any
from analyzer.oom.scan.process import LogProcess, add_tolerated, join_repeated, move_tolerated

_MOST_FAILURES: Final = 500  # stored; more are counted
_MOST_ROWS: Final = 10_000  # of a histogram, and runs of refusals
_MOST_TAGS: Final = 256  # processes
_BACK_OFF: Final = 0.8
"""A refused request of at least this share of the last one continues the run: the pool asks for a
tenth less each time (``BFCAllocator::Extend``)."""


def read_records(stream: BinaryIO, name: str = "") -> LogRecords:
    """Return the records of a log, or raise an InputError for a damaged gzip header."""
    reader = LogReader()
    for message in join_texts(read_messages(stream, name)):
        reader.take(message)
    return reader.finish()


class LogReader:
    """The records so far, and the state of each process in the log."""

    def __init__(self) -> None:
        self.records = LogRecords()
        self._processes: dict[str, LogProcess] = {}
        self._chunks = 0
        self._stamped: dict[tuple[str, str], LoggedFailure] = {}

    def take(self, message: LogMessage) -> None:
        """Read one message."""
        self.records.lines = message.number
        process = self._process_of(message.tag)
        if not message.text.strip():
            process.is_in_usage = False
            return
        is_read = (
            self._take_failure(process, message)
            or self._take_dump(process, message)
            or self._take_async(process, message)
            or self._take_refusal(process, message)
            or take_component(self, process, message)
            or take_error_text(self, process, message)
        )
        if not is_read:
            take_start_line(self.records, process, message.text)
            take_unknown(self, process, message)

    def add_failure(
        self,
        process: LogProcess,
        message: LogMessage,
        kind: FailedAllocator = FailedAllocator.POOL,
        text: str = "",
        *,
        reports: int = 1,
    ) -> LoggedFailure:
        """Return a new failure with the refusals before it; count it if there are too many."""
        failure = LoggedFailure(kind, message.number, tag=process.tag, text=text, reports=reports)
        failure.refusals, process.refusals = process.refusals, []
        failure.framework = process.framework
        if len(self.records.failures) >= _MOST_FAILURES:
            self.records.more_failures += 1
        else:
            self.records.failures.append(failure)
        return failure

    def finish(self) -> LogRecords:
        """Return the records after the last message."""
        move_tolerated(self.records)
        join_repeated(self.records)
        finish_components(self.records)
        return self.records

    def _process_of(self, tag: str) -> LogProcess:
        process = self._processes.get(tag)
        if process is None:
            if len(self._processes) >= _MOST_TAGS:
                return next(iter(self._processes.values()))
            process = self._processes[tag] = LogProcess(tag)
        return process

    def _take_failure(self, process: LogProcess, message: LogMessage) -> bool:
        text = message.text
        if find("garbage_collection", text):
            self.records.garbage_collections += 1
            return True
        if match := find("allocator_failed", text):
            size = parse_size(match["size"]) or Range.exactly(0)
            if find("not_a_failure", text):
                add_tolerated(self.records, match["allocator"], size, message.number)
                return True
            rounded = parse_size(match["rounded"])
            tensor = RequestedTensor(size=size, rounded_bytes=rounded.low if rounded else None)
            failure = self._start_failure(process, message, match["allocator"], tensor)
            # a copied line may continue with TensorFlow's advice
            op = (match["op"] or "").partition("If the cause")[0].strip()
            failure.requested_by = op.removeprefix("<null>")
            return True
        if match := find("eigen_failed", text):
            tensor = RequestedTensor(size=parse_size(match["bytes"]))
            self._start_failure(process, message, "", tensor)
            return True
        if match := find("allocator_failed_old", text):
            self._take_old_failure(process, message, parse_size(match["size"]))
        return match is not None

    def _take_old_failure(
        self, process: LogProcess, message: LogMessage, size: Range | None
    ) -> None:
        """Read a failure of TensorFlow 1.0 and before, whose dump comes first."""
        if find("not_a_failure", message.text):
            add_tolerated(self.records, "", size or Range.exactly(0), message.number)
            return
        tensor = RequestedTensor(size=size)
        before = process.owner(message.thread)
        if before is None or before.has_allocator_line:
            self._start_failure(process, message, "", tensor)
        else:
            before.tensor, before.has_allocator_line = tensor, True
            before.text = message.text

    def _start_failure(
        self, process: LogProcess, message: LogMessage, allocator: str, tensor: RequestedTensor
    ) -> LoggedFailure:
        process.refusal = None
        key = (message.stamp, message.text)
        known = self._stamped.get(key) if message.stamp else None
        if known is not None:  # the same line twice, such as an excerpt before the whole log
            known.reports += 1
            process.refusals = []
            failure = known if known.dump.is_empty else LoggedFailure(known.kind, message.number)
        else:
            failure = self.add_failure(process, message, text=message.text)
            failure.tensor, failure.allocator = tensor, allocator
            if message.stamp and len(self._stamped) < _MOST_FAILURES:
                self._stamped[key] = failure
        failure.has_allocator_line = True
        process.await_dump(message.thread, failure)
        return failure

    def _take_dump(self, process: LogProcess, message: LogMessage) -> bool:
        text = message.text
        owner = self._dump_owner(process, message)
        if owner is None or not _may_be_map_of(owner, message):
            return False
        stored = len(owner.dump.chunks)
        if self._chunks > 2 * MOST_CHUNKS and "of size" in text and "Chunks of" not in text:
            owner.dump.omitted_chunks += 1
            return True
        had_map = bool(owner.dump.map)
        if not add_dump_line(owner.dump, text):
            return False
        self._chunks += len(owner.dump.chunks) - stored
        if owner.dump.map and not had_map and owner.has_allocator_line:
            process.close_dump(message.thread, owner)
        return True

    # Complex: the lines that may begin a dump, in order of precedence.
    def _dump_owner(self, process: LogProcess, message: LogMessage) -> LoggedFailure | None:
        """Return the failure that a dump line belongs to; None if no dump is being read."""
        text, thread = message.text, message.thread
        owner = process.owner(thread)
        head = find("dump_head", text) if "llocator dump" in text else None
        if head is not None:
            name = head["allocator"]
            owner = process.find_waiting(thread, name) or self._start_dump(process, message, name)
            process.select(thread, owner)
        elif find("dump_bin", text) and (owner is None or _is_next_dump(owner, text)):
            others = (one for one in process.waiting.get(thread, ()) if one is not owner)
            owner = (
                process.find_waiting(thread, "")
                or next((one for one in others if not _is_next_dump(one, text)), None)
                or self._start_dump(process, message, "")
            )
            process.select(thread, owner)
        elif owner is None:
            if not _is_dump_line(message):
                process.limit_line = text if find("limit_alone", text) else ""
                return None
            owner = self._start_dump(process, message, "")
            add_dump_line(owner.dump, process.limit_line)
        return owner

    def _start_dump(
        self, process: LogProcess, message: LogMessage, allocator: str
    ) -> LoggedFailure:
        """Add a failure whose dump comes first (TensorFlow 1.0 and before) or is all there is."""
        failure = self.add_failure(process, message)
        failure.allocator = allocator
        process.await_dump(message.thread, failure)
        return failure

    def _take_async(self, process: LogProcess, message: LogMessage) -> bool:
        text = message.text
        if match := find("async_failed", text):
            size = parse_size(match["bytes"]) or Range.exactly(0)
            self._take_async_failure(process, message, match["allocator"] or "", size)
            return True
        owner = process.owner(message.thread)
        is_async = owner is not None and owner.kind is FailedAllocator.ASYNC
        is_head = find("histogram_head", text) is not None
        if is_head and not is_async:  # a histogram is printed for failures only
            owner = self._start_dump(process, message, "")
            owner.kind = FailedAllocator.ASYNC
        if owner is None or owner.kind is not FailedAllocator.ASYNC:
            return False
        if match := find("card_free", text):
            owner.card_free, owner.card_total = map(parse_count, match.group("free", "total"))
            return True
        if is_head:
            if not owner.histogram:
                process.histogram_thread = message.thread
            return True
        return _add_histogram_row(owner, process, message)

    def _take_async_failure(
        self, process: LogProcess, message: LogMessage, allocator: str, size: Range
    ) -> None:
        """Count a repeated request of the asynchronous allocator, or start a failure."""
        failures = reversed(self.records.failures)
        last = next((one for one in failures if one.tag == process.tag), None)
        same = (FailedAllocator.ASYNC, size, allocator, False)
        if last and (last.kind, last.tensor.size, last.allocator, last.has_error_text) == same:
            last.reports += 1
            last.histogram.clear()
            last.dump.stats.clear()
        else:
            last = self._start_failure(process, message, allocator, RequestedTensor(size=size))
            last.kind = FailedAllocator.ASYNC
        process.select(message.thread, last)
        process.histogram_thread = None

    def _take_refusal(self, process: LogProcess, message: LogMessage) -> bool:
        refused = find("driver_refused", message.text)
        match = refused or find_any(("host_refused", "pinned_refused"), message.text)
        if match is None:
            return False
        is_host = refused is None
        fields = match.groupdict()
        size_bytes = parse_count(fields["bytes"] or fields["unified"])
        run = process.refusal
        if (
            run is not None
            and run.is_host == is_host
            and _BACK_OFF * run.last_bytes < size_bytes <= run.last_bytes
        ):
            if size_bytes != run.last_bytes or not is_host:
                run.times += 1
            run.last_bytes = size_bytes
            return True
        code = fields.get("code", "").strip()[:200]
        run = RefusalRun(message.number, process.tag, size_bytes, size_bytes, 1, code, is_host)
        process.refusal = run
        if len(self.records.refusals) < _MOST_ROWS:
            if not is_host:
                process.refusals.append(len(self.records.refusals))
            self.records.refusals.append(run)
        return True


def _is_next_dump(owner: LoggedFailure, text: str) -> bool:
    """Return whether a size class cannot belong to the dump that is being read."""
    match = find("dump_bin", text)
    if match is None:
        return False
    size_bytes, dump = parse_count(match["bytes"]), owner.dump
    return bool(dump.stats or dump.map or any(one.size_bytes == size_bytes for one in dump.bins))


def _is_dump_line(message: LogMessage) -> bool:
    """Return whether a line belongs to a dump whose start the log lacks."""
    names = ("chunk", "summary_row", "summary_total", "stat_alone")
    if find_any(names, message.text):
        return True
    return "bfc_allocator" in message.file and find("map", message.text) is not None


def _may_be_map_of(owner: LoggedFailure, message: LogMessage) -> bool:
    """Return False for a row of map characters, such as a ruler of any program, outside a dump."""
    if not find("map", message.text):
        return True
    is_named = "bfc_allocator" in message.file
    return not owner.dump.map and (is_named or not owner.dump.is_empty)


def _add_histogram_row(owner: LoggedFailure, process: LogProcess, message: LogMessage) -> bool:
    """Add a row of the asynchronous allocator's histogram; return False for any other line."""
    row = find("histogram_row", message.text) if process.histogram_thread is not None else None
    is_own = message.thread == process.histogram_thread  # several threads may print at once
    if row and is_own and len(owner.histogram) < _MOST_ROWS:
        size_bytes, count = map(parse_count, row.group("bytes", "count"))
        if size_bytes * count <= MOST_BYTES:
            owner.histogram.append((size_bytes, count))
    return row is not None or find("pool_attribute", message.text) is not None
