"""State of one process of a log between two of its lines."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from analyzer.model.ranges import Range
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedCard,
    LoggedFailure,
    LogRecords,
    RefusalRun,
    ToleratedFailures,
)
from analyzer.oom.scan.patterns import find

_MOST_OPEN: Final = 16  # threads, and failures of one thread that wait for their dump
_MOST_ALLOCATORS: Final = 256  # with warnings
_LIBRARY_PATHS: Final = (
    *("site-packages", "dist-packages", "<frozen", "/lib/python", "\\lib\\", "\\Lib\\"),
)


class LogProcess(Struct):
    """The process that writes lines with one tag."""

    tag: str
    waiting: dict[str, list[LoggedFailure]] = {}  # failures whose dump may still come, by thread
    current: dict[str, LoggedFailure] = {}  # failures whose dump is being read, by thread
    latest: LoggedFailure | None = None  # that of the thread that wrote last
    error: LoggedFailure | None = None  # the failure that the next lines may describe
    node: str = ""
    frame: str = ""
    refusal: RefusalRun | None = None  # may continue
    refusals: list[RefusalRun] = []  # since the last failure
    card: LoggedCard | None = None
    card_lines: int = 0  # the next lines that may describe the card
    histogram_thread: str | None = None
    is_in_usage: bool = False
    is_in_buffers: bool = False
    no_algorithm_lines: int = 0
    has_kernel_line: bool = False
    kernel: str = ""
    framework: str = ""
    component: LoggedFailure | None = None  # the failure that the next lines may describe
    component_lines: int = 0
    component_name: str = ""  # its row
    memory_limit: Range | None = None
    limit_lines: int = 0

    def await_dump(self, thread: str, failure: LoggedFailure) -> None:
        """Expect a dump for a failure."""
        waiting = self.waiting.setdefault(thread, [])
        waiting.append(failure)
        del waiting[:-_MOST_OPEN]
        self.select(thread, failure)
        for by_thread in (self.waiting, self.current):
            if len(by_thread) > _MOST_OPEN:
                del by_thread[next(iter(by_thread))]

    def select(self, thread: str, failure: LoggedFailure) -> None:
        """Give the next dump lines of a thread to a failure."""
        self.current[thread] = self.latest = failure

    def owner(self, thread: str) -> LoggedFailure | None:
        """Return the failure that a dump line of a thread belongs to."""
        return self.current.get(thread) if thread else self.latest

    def find_waiting(self, thread: str, allocator: str) -> LoggedFailure | None:
        """Return the latest failure of an allocator whose dump has not started."""
        for failure in reversed(self.waiting.get(thread, ())):
            if failure.dump.is_empty and failure.allocator in ("", allocator):
                return failure
        return None

    def close_dump(self, thread: str, failure: LoggedFailure) -> None:
        """End a dump; the next lines go to the thread's next failure without one."""
        waiting = self.waiting.get(thread, [])
        if failure in waiting:
            waiting.remove(failure)
        due = [other for other in waiting if other.dump.is_empty]
        if due:
            self.select(thread, due[-1])
        else:
            self.current.pop(thread, None)

    def note_frame(self, text: str) -> bool:
        """Remember a traceback frame of the user's code; return False if the line is no frame."""
        match = find("frame", text)
        if match is None:
            return False
        path = match["path"]
        if not any(part in path for part in _LIBRARY_PATHS) and not path.startswith("<"):
            self.frame = f"{path}:{match['line']}"
        return True


def add_tolerated(records: LogRecords, allocator: str, size: Range, count: int = 1) -> None:
    """Count failed requests that the caller could do without."""
    known = next((one for one in records.tolerated if one.allocator == allocator), None)
    if known is not None:
        known.times += count
        known.largest = max(known.largest, size, key=lambda each: each.middle)
    elif len(records.tolerated) < _MOST_ALLOCATORS:
        records.tolerated.append(ToleratedFailures(allocator, count, size))


def move_tolerated(records: LogRecords) -> None:
    """Move requests of the asynchronous allocator without an error to the tolerated ones.

    It also logs requests with which a convolution tries an algorithm
    (``gpu_cudamallocasync_allocator.cc``). If others led to an error, these did not.
    """
    requests = [one for one in records.failures if one.kind is FailedAllocator.ASYNC]
    if not any(failure.has_error_text for failure in requests):
        return
    for failure in requests:
        if not failure.has_error_text and failure.tensor.size is not None:
            records.failures.remove(failure)
            add_tolerated(records, failure.allocator, failure.tensor.size, failure.reports)


def join_repeated(records: LogRecords) -> None:
    """Join requests that were repeated without an error in the same state of the allocator.

    XLA's autotuner repeats a request for each algorithm, and the allocator waits up to 10 s each time.
    """
    rows: list[LoggedFailure] = []
    last: tuple[object, ...] | None = None
    for one in records.failures:
        is_alone = one.kind is FailedAllocator.POOL and not one.has_error_text
        state = None
        if is_alone and one.has_allocator_line and one.tensor.size is not None:
            request = (one.tag, one.allocator, one.tensor, one.requested_by)
            state = (*request, one.dump.stats, one.dump.map)
        if state is not None and state == last:
            rows[-1].reports += one.reports
        else:
            rows.append(one)
        last = state
    records.failures[:] = rows
