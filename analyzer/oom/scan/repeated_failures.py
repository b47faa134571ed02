"""Requests that did not lead to a failure, or that the log reports several times."""

from __future__ import annotations

from typing import Final

from analyzer.model.ranges import Range
from analyzer.oom.log_records import (
    FailedAllocator,
    LoggedFailure,
    LogRecords,
    ToleratedFailures,
)

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

    It logs every request that fails, also those with which a convolution tries an algorithm
    (``gpu_cudamallocasync_allocator.cc``). If others in the log led to an error, these did not.
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

    XLA's autotuner repeats a request for each algorithm that it tries, and the allocator waits up to
    10 s each time for memory that other ops may free.
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
