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
    refusals: list[int] = []  # since the last failure
    card: LoggedCard | None = None
    card_age: int = 0
    histogram_thread: str | None = None
    is_in_usage: bool = False
    is_in_buffers: bool = False
    no_algorithm_lines: int = 0
    has_kernel_line: bool = False
    kernel: str = ""
    limit_line: str = ""  # may start a block of figures
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
        if len(self.waiting) > _MOST_OPEN:
            del self.waiting[next(iter(self.waiting))]
        self.select(thread, failure)
        if len(self.current) > _MOST_OPEN:
            del self.current[next(iter(self.current))]

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


_MOST_ALLOCATORS: Final = 256  # with warnings


def add_tolerated(records: LogRecords, allocator: str, size: Range, line: int) -> None:
    """Count a failed request that the caller could do without."""
    for known in records.tolerated:
        if known.allocator == allocator:
            known.times += 1
            known.largest = max(known.largest, size, key=lambda each: each.middle)
            return
    if len(records.tolerated) < _MOST_ALLOCATORS:
        records.tolerated.append(ToleratedFailures(line, allocator, 1, size))


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
            for _ in range(failure.reports):
                add_tolerated(records, failure.allocator, failure.tensor.size, failure.line)


def join_repeated(records: LogRecords) -> None:
    """Join requests that were repeated without an error in the same state of the allocator.

    XLA's autotuner repeats a request for each algorithm, and the allocator waits up to 10 s each time.
    """
    kept: list[LoggedFailure] = []
    for failure in records.failures:
        if kept and _is_repeated(kept[-1], failure):
            kept[-1].reports += failure.reports
        else:
            kept.append(failure)
    records.failures[:] = kept


def _is_repeated(last: LoggedFailure, failure: LoggedFailure) -> bool:
    """Return whether two failures are one request without an error, in one allocator state."""
    if not last.kind is failure.kind is FailedAllocator.POOL:
        return False
    if last.has_error_text or failure.has_error_text:
        return False
    if not failure.has_allocator_line or failure.tensor.size is None:
        return False

    def state(one: LoggedFailure) -> tuple[object, ...]:
        request = (one.tag, one.allocator, one.tensor, one.requested_by)
        return (*request, one.dump.stats, one.dump.map)

    return state(last) == state(failure)
