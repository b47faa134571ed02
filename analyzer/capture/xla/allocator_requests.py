"""Record what TensorFlow's CPU allocator is asked for while a block of code runs.

The profiler writes an event for each allocation and free of a BFC allocator. It is used around calls
that run nothing of the step and still allocate: lowering a function folds its constants.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tensorflow as tf

from analyzer.model.errors import TraceError
from analyzer.tracing.parse.logdir import find_traces
from analyzer.tracing.parse.xplane import read_trace

_SMALL_BYTES: Final = 64 << 10
"""A buffer of at least this size may split or merge other chunks, and is always kept."""

Events = list[tuple[int, int]]
"""(number of a buffer, its bytes) for an allocation, (number, 0) for a free."""


@contextlib.contextmanager
def record_requests(parent: Path) -> Iterator[Events]:
    """Record the allocations in the block, and frees of them; the list is filled afterwards.

    It stays empty if another profile is running or the allocator writes no events.

    Args:
        parent: Where to make a temporary folder.
    """
    events: Events = []
    folder = Path(tempfile.mkdtemp(prefix=".requests-", dir=parent))
    try:
        try:
            tf.profiler.experimental.start(str(folder))
        except tf.errors.OpError:  # another profile of this process is running
            yield events
            return
        try:
            yield events
        finally:
            tf.profiler.experimental.stop()
        with contextlib.suppress(TraceError):
            events += _read_events(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drop_short_lived(events: Events) -> Events:
    """Return the events without small buffers that are freed before anything else happens.

    They do not change the state of the allocator.
    """
    kept: Events = []
    for number, size_bytes in events:
        if not size_bytes and kept and kept[-1][0] == number and 0 < kept[-1][1] < _SMALL_BYTES:
            kept.pop()
        else:
            kept.append((number, size_bytes))
    return kept


def _read_events(folder: Path) -> Events:
    table = read_trace(find_traces(folder)[0]).events
    columns = (table[name].to_list() for name in ("kind", "address", "requested_bytes"))
    numbers: dict[int, int] = {}
    events: Events = []
    count = 0
    for kind, address, size_bytes in zip(*columns, strict=True):
        if kind > 0 and size_bytes:
            numbers[address] = count
            events.append((count, int(size_bytes)))
            count += 1
        elif kind < 0 and address in numbers:
            events.append((numbers.pop(address), 0))
    return events
