"""What TensorFlow asks its CPU allocator for while a block of code runs.

The profiler writes an event for each allocation and each free of a BFC allocator. Used around calls
that run nothing of the user's step and still allocate: lowering and compiling a function folds its
constants.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tensorflow as tf

from analyzer.model.errors import TraceError
from analyzer.tracing.parse.logdir import find_traces
from analyzer.tracing.parse.xplane import read_trace


@dataclass
class Requests:
    """Allocations and frees in order.

    Attributes:
        events: (number of a buffer, its bytes) where it is born, (number, 0) where it dies; what is
            freed and was born before the block is left out.
    """

    events: list[tuple[int, int]] = field(default_factory=list)


@contextlib.contextmanager
def record_requests(place: Path) -> Iterator[Requests]:
    """Record the block's requests; none are recorded where the allocator or the profiler tells nothing.

    Args:
        place: Where a folder is made that is gone after the block.
    """
    found = Requests()
    folder = Path(tempfile.mkdtemp(prefix=".requests-", dir=place))
    try:
        try:
            tf.profiler.experimental.start(str(folder))
        except tf.errors.OpError:  # another profiler session of this process is under way
            yield found
            return
        try:
            yield found
        finally:
            tf.profiler.experimental.stop()
        with contextlib.suppress(TraceError):
            found.events = _events(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_SMALL_BYTES: Final = 64 << 10  # from which a buffer may split or join other chunks, and is kept


def lasting(events: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the events without small buffers that are freed before anything else happens.

    The allocator hands such a buffer out and takes it back: what comes after finds the same chunks.
    """
    kept: list[tuple[int, int]] = []
    for number, size_bytes in events:
        if not size_bytes and kept and kept[-1][0] == number and 0 < kept[-1][1] < _SMALL_BYTES:
            kept.pop()
        else:
            kept.append((number, size_bytes))
    return kept


def _events(folder: Path) -> list[tuple[int, int]]:
    table = read_trace(find_traces(folder)[0]).events
    numbers: dict[int, int] = {}
    events: list[tuple[int, int]] = []
    count = 0
    for kind, address, size_bytes in zip(
        table["kind"].to_list(),
        table["address"].to_list(),
        table["requested_bytes"].to_list(),
        strict=True,
    ):
        if kind > 0 and size_bytes:
            numbers[address] = count
            events.append((count, int(size_bytes)))
            count += 1
        elif kind < 0 and address in numbers:
            events.append((numbers.pop(address), 0))
    return events
