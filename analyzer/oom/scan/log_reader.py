"""The messages of a log as records; each failed request becomes one record."""

from __future__ import annotations

from typing import BinaryIO, Final

from analyzer.model.contract.fields import MOST_BYTES
from analyzer.model.ranges import Range
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedFailure,
    LogRecords,
    RefusalRun,
    RequestedTensor,
    parse_count,
    parse_size,
)
from analyzer.oom.scan.components import finish_components, take_component, take_unknown
from analyzer.oom.scan.dump_lines import (
    MOST_CHUNKS,
    LogProcess,
    add_dump_line,
    add_sizes,
    add_tolerated,
    join_repeated,
    move_tolerated,
    take_start_line,
)
from analyzer.oom.scan.error_texts import join_texts, take_error_text
from analyzer.oom.scan.lines import LogMessage, read_messages
from analyzer.oom.scan.patterns import find, find_any

_MOST_FAILURES: Final = 500  # stored; more are counted
_MOST_RUNS: Final = 10_000  # of refusals
_MOST_TAGS: Final = 256  # processes
_BACK_OFF: Final = 0.8
"""A refused request of at least this share of the last one continues the run: the pool asks for a
tenth less each time (``BFCAllocator::Extend``)."""
_DUMP_LINES: Final = ("chunk", "summary_row", "summary_total", "pool_line", "stat_alone")
"""Lines that belong to a dump even if the log lacks its start."""


def read_records(stream: BinaryIO, name: str = "") -> LogRecords:
    """Return the records of a log, or raise an InputError for a damaged gzip header."""
    reader = LogReader()
    for message in join_texts(read_messages(stream, name)):
        reader.take(message)
    move_tolerated(reader.records)
    join_repeated(reader.records)
    finish_components(reader.records)
    return reader.records


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

    def _process_of(self, tag: str) -> LogProcess:
        if tag not in self._processes and len(self._processes) >= _MOST_TAGS:
            return next(iter(self._processes.values()))
        return self._processes.setdefault(tag, LogProcess(tag))

    def _take_failure(self, process: LogProcess, message: LogMessage) -> bool:
        text = message.text
        if find("garbage_collection", text):
            self.records.garbage_collections += 1
            return True
        match = find("allocator_failed", text)
        if match is None:
            return False
        fields = match.groupdict("")
        size, allocator = parse_size(fields["size"]), fields["allocator"]
        if find("not_a_failure", text):
            add_tolerated(self.records, allocator, size or Range.exactly(0))
            return True
        rounded = parse_size(fields["rounded"])
        tensor = RequestedTensor(size=size, rounded_bytes=rounded.low if rounded else None)
        failure = self._start_failure(process, message, allocator, tensor)
        # a copied line may continue with TensorFlow's advice
        op = fields["op"].partition("If the cause")[0].strip()
        failure.requested_by = op.removeprefix("<null>")
        return True

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
        cells, is_named = find("map", text), "bfc_allocator" in message.file + text
        is_part = is_named and (cells is not None or text.rstrip().endswith("Stats:"))
        owner = self._dump_owner(process, message, is_part=is_part)
        if owner is None:
            return False
        dump = owner.dump
        if cells and (dump.map or not (is_named or not dump.is_empty)):
            return False  # such as a ruler of any program
        if self._chunks > 2 * MOST_CHUNKS and find("chunk", text):
            dump.omitted_chunks += 1
            return True
        stored, had_map = len(dump.chunks), bool(dump.map)
        if not add_dump_line(dump, text):
            return False
        self._chunks += len(dump.chunks) - stored
        if dump.map and not had_map and owner.has_allocator_line:
            process.close_dump(message.thread, owner)
        return True

    def _dump_owner(
        self, process: LogProcess, message: LogMessage, *, is_part: bool
    ) -> LoggedFailure | None:
        """Return the failure that a dump line belongs to; None if no dump is being read."""
        text, thread = message.text, message.thread
        owner = process.owner(thread)
        head = find("dump_head", text)
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
        elif owner is None and (is_part or find_any(_DUMP_LINES, text)):
            owner = self._start_dump(process, message, "")
        return owner

    def _start_dump(
        self, process: LogProcess, message: LogMessage, allocator: str
    ) -> LoggedFailure:
        """Add a failure whose dump is all that the log has."""
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
        owner, is_head = process.owner(message.thread), find("histogram_head", text) is not None
        if is_head and (owner is None or owner.kind is not FailedAllocator.ASYNC):
            owner = self._start_dump(process, message, "")  # a histogram follows failures only
            owner.kind = FailedAllocator.ASYNC
        if owner is None or owner.kind is not FailedAllocator.ASYNC:
            return False
        if is_head:
            if not owner.dump.summary:
                process.histogram_thread = message.thread
        elif match := find("card_free", text):
            owner.card_free, owner.card_total = map(parse_count, match.group("free", "total"))
        elif process.histogram_thread is not None and (row := find("histogram_row", text)):
            if message.thread == process.histogram_thread:  # several threads may print at once
                add_sizes(owner.dump, *map(parse_count, row.group("bytes", "count")))
        else:
            return find("pool_attribute", text) is not None
        return True

    def _take_async_failure(
        self, process: LogProcess, message: LogMessage, allocator: str, size: Range
    ) -> None:
        """Count a repeated request of the asynchronous allocator, or start a failure."""
        failures = reversed(self.records.failures)
        last = next((one for one in failures if one.tag == process.tag), None)
        same = (FailedAllocator.ASYNC, size, allocator, False)
        if last and (last.kind, last.tensor.size, last.allocator, last.has_error_text) == same:
            last.reports += 1
            last.dump.summary.clear()
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
        is_host, fields, run = refused is None, match.groupdict(), process.refusal
        size_bytes = min(int(fields["bytes"] or fields["unified"]), MOST_BYTES)
        is_next = run is not None and _BACK_OFF * run.last_bytes < size_bytes <= run.last_bytes
        if run is not None and is_next and run.is_host == is_host:
            run.times += size_bytes != run.last_bytes or not is_host
            run.last_bytes = size_bytes
            return True
        code = fields.get("code", "").strip()[:200]
        run = RefusalRun(message.number, size_bytes, size_bytes, 1, code, is_host, process.tag)
        process.refusal = run
        if len(self.records.refusals) < _MOST_RUNS:
            self.records.refusals.append(run)
            process.refusals += [] if is_host else [run]
        return True


def _is_next_dump(owner: LoggedFailure, text: str) -> bool:
    """Return whether a size class cannot belong to the dump that is being read."""
    match = find("dump_bin", text)
    if match is None:
        return False
    size_bytes, dump = parse_count(match["bytes"]), owner.dump
    return bool(dump.stats or dump.map or any(one.size_bytes == size_bytes for one in dump.bins))
