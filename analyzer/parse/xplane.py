"""A profiler trace (``.xplane.pb``) to tables, without TensorFlow.

A trace holds *planes* (hosts and devices), a plane holds *lines* (threads) and a line holds events.
The allocators write each allocation and each free as an event named ``MemoryAllocation`` or
``MemoryDeallocation`` with their own statistics in it. Nothing is sampled and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError

from analyzer.contract.reading import file_bytes, unpack
from analyzer.errors import TraceError
from analyzer.parse.dtypes import DTYPE_NAMES
from analyzer.parse.xspace import Space
from analyzer.recording.records import Damage
from analyzer.recording.schema import EVENTS, conform
from analyzer.units import times

MARKER_PREFIX: Final = "analyzer:"
"""Events with this prefix are marks that our own capture wrote into the trace."""

_MOST_RATIO: Final = 16
"""A packed trace unpacks to at most so many times its size; TensorFlow's unpack to some six times."""

_LEAST_EVENT_BYTES: Final = 8
"""Bytes of an event on average at least: its name, its start and its length. TensorFlow's have 27 to 64,
with their statistics; millions of empty ones would only fill memory."""

_MOST_PS: Final = 1 << 62
"""Times in picoseconds lie within so much of the first: 53 days."""

_KINDS: Final = {b"MemoryAllocation": 1, b"MemoryDeallocation": -1}
_INTEGER_STATS: Final = {
    "addr": "address",
    "requested_bytes": "requested_bytes",
    "allocation_bytes": "allocated_bytes",
    "bytes_allocated": "in_use_bytes",
    "bytes_available": "available_bytes",
    "peak_bytes_in_use": "peak_in_use_bytes",
    "id": "run_id",
    "data_type": "dtype",
}
_TEXT_STATS: Final = {
    "allocator_name": "allocator",
    "tf_op": "op",
    "region_type": "region",
    "shape": "shape",
}

_MOST_STEPS: Final = 200_000
"""Step markers of a trace at most. Each is a row of the report, and a profile is a few steps long."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time on one thread.

    Attributes:
        name: The event's name.
        start_ps, end_ps: Picoseconds on the trace's clock.
        thread: Line it was written on.
        stats: The statistics written with it, as plain numbers and text.
    """

    name: str
    start_ps: int
    end_ps: int
    thread: int
    stats: dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class RawTrace:
    """What a trace says about memory, before any interpretation.

    Attributes:
        events: Table with the columns of :data:`analyzer.recording.schema.EVENTS`, sorted by time.
        step_markers: Spans that carry a step number.
        markers: Spans that our own capture wrote.
        op_runs: One row for each run of an op on the host: ``op``, ``start_ps``, ``end_ps``,
            ``thread``, sorted by start.
        devices: Names of the device planes, such as ``/device:GPU:0``.
        hostnames: Names of the hosts that wrote the trace.
        damages: What could not be read.
    """

    events: pd.DataFrame
    step_markers: tuple[Span, ...]
    markers: tuple[Span, ...]
    op_runs: pd.DataFrame
    devices: tuple[str, ...] = ()
    hostnames: tuple[str, ...] = ()
    damages: tuple[Damage, ...] = ()


def read_bytes(path: Path) -> bytes:
    """Return the file's content, unpacked where it is gzipped.

    Raises:
        TraceError: the file is missing, unreadable, empty or a broken gzip.
    """
    try:
        content = file_bytes(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            hint="Name an existing .xplane.pb, run folder or logdir.",
        ) from None
    if content[:2] == b"\x1f\x8b":
        try:
            content = unpack(content, most_ratio=_MOST_RATIO)
        except ValueError as error:
            raise TraceError(
                f"{path} is a truncated or damaged gzip file ({error}).",
                hint="Copy it again, whole.",
            ) from None
    if not content:
        raise TraceError(
            f"{path} is empty.", hint="The profiler was probably stopped before it wrote; retrace."
        )
    return content


def read_trace(path: Path, *, progress: Callable[[float], None] | None = None) -> RawTrace:
    """Read one ``.xplane.pb`` or ``.xplane.pb.gz``.

    Args:
        path: The file.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: it is no trace, is cut short, or holds no memory events.
    """
    content = read_bytes(path)
    try:
        space = Space.FromString(content)
    except DecodeError:
        raise TraceError(
            f"{path} is not a profiler trace, or is cut short.",
            hint="Expected the .xplane.pb that tf.profiler writes; copy it again or retrace.",
        ) from None
    events = sum(len(line.events) for plane in space.planes for line in plane.lines)
    if events * _LEAST_EVENT_BYTES > len(content):
        raise TraceError(
            f"{path} is damaged: its {events} events hold next to nothing.",
            hint="Copy it again or retrace.",
        )
    return read_space(space, path, progress=progress)


def read_space(
    space: Any, path: Path, *, progress: Callable[[float], None] | None = None
) -> RawTrace:
    """Read a trace that is decoded already; ``path`` is what errors call it.

    Args:
        space: An ``XSpace`` message.
        path: What errors call it.
        progress: Called with the share done, 0 to 1.

    Raises:
        TraceError: it holds no memory events.
    """
    if not any(plane.lines or plane.event_metadata for plane in space.planes):
        raise TraceError(
            f"{path} holds no profiler planes.",
            hint="Expected the .xplane.pb that tf.profiler writes; retrace.",
        )
    try:
        raw = _read_space(space, progress or (lambda share: None))
    except ValueError as error:
        raise TraceError(
            f"{path} is damaged: it holds {error}.", hint="Copy it again or retrace."
        ) from None
    if raw.events.empty:
        raise TraceError(
            f"{path} holds no memory events.",
            hint="TensorFlow's CPU allocator writes none unless TF_CPU_ALLOCATOR_USE_BFC=1 is set "
            "before TensorFlow is imported, and cuda_malloc_async never does; `analyze trace "
            "MODEL` captures with the right settings.",
        )
    return raw


# Long: one pass over millions of events, in which a call for each would cost more than the work.
def _read_space(space: Any, progress: Callable[[float], None]) -> RawTrace:
    memory = _MemoryColumns()
    unnamed = 0
    steps: list[Span] = []
    markers: list[Span] = []
    runs: list[tuple[str, int, int, int]] = []
    origin_ns = _origin_ns(space)
    total = sum(len(line.events) for plane in space.planes for line in plane.lines) or 1
    done = 0
    thread = 0
    for plane in space.planes:
        names = {entry.key: bytes(entry.value.name) for entry in plane.event_metadata}
        stats = {
            entry.key: entry.value.name.decode("utf-8", "replace") for entry in plane.stat_metadata
        }
        kinds = {key: _KINDS[name] for key, name in names.items() if name in _KINDS}
        marks = {k for k, name in names.items() if name.startswith(MARKER_PREFIX.encode())}
        op_names = {k: op for k, name in names.items() if (op := _op_of(name)) is not None}
        step_stat = next((key for key, name in stats.items() if name == "step_num"), None)
        is_host = not plane.name.startswith(b"/device:")
        for line in plane.lines:
            thread += 1
            base_ps = (line.timestamp_ns - origin_ns) * 1000
            for event in line.events:
                key = event.metadata_id
                kind = kinds.get(key)
                start_ps = base_ps + event.offset_ps
                unnamed += key not in names
                if not -_MOST_PS < start_ps <= start_ps + abs(event.duration_ps) < _MOST_PS:
                    raise ValueError("times that lie months apart")
                if kind is not None:
                    memory.add(kind, start_ps, thread, event, stats)
                elif key in marks or (
                    step_stat is not None
                    and is_host
                    and any(stat.metadata_id == step_stat for stat in event.stats)
                ):
                    span = Span(
                        names.get(key, b"").decode("utf-8", "replace"),
                        start_ps,
                        start_ps + event.duration_ps,
                        thread,
                        dict(_plain_stats(event.stats, stats)),
                    )
                    (markers if key in marks else steps).append(span)
                    if len(steps) > _MOST_STEPS:
                        raise ValueError(f"more than {_MOST_STEPS:,} step markers")
                elif is_host and key in op_names:
                    runs.append((op_names[key], start_ps, start_ps + event.duration_ps, thread))
            done += len(line.events)
            progress(done / total)
    op_runs = pd.DataFrame(runs, columns=["op", "start_ps", "end_ps", "thread"])
    return RawTrace(
        events=memory.table(),
        step_markers=tuple(sorted(steps, key=lambda span: (span.start_ps, -span.end_ps))),
        markers=tuple(sorted(markers, key=lambda span: span.start_ps)),
        op_runs=op_runs.sort_values("start_ps", kind="stable", ignore_index=True),
        devices=tuple(
            plane.name.decode("utf-8", "replace")
            for plane in space.planes
            if plane.name.startswith(b"/device:")
        ),
        hostnames=tuple(name.decode("utf-8", "replace") for name in space.hostnames),
        damages=memory.damages(unnamed),
    )


def _origin_ns(space: Any) -> int:
    """Return the time that all times are counted from: 0, unless they would not fit 64 bits then.

    The profiler writes times since its own start; a trace with times since 1970 reads all the same.
    """
    starts = [line.timestamp_ns for plane in space.planes for line in plane.lines if line.events]
    return min(starts) if starts and max(starts) * 1000 >= _MOST_PS else 0


def _op_of(name: bytes) -> str | None:
    """Return the node name in an executor event named ``node:Type``, or None for other events."""
    op, colon, op_type = name.rpartition(b":")
    is_type = op_type[:1].isalpha() or op_type[:1] == b"_"
    if not colon or not op or op.endswith(b":") or not is_type:
        return None
    return op.decode("utf-8", "replace")


def _plain_stats(stats: Any, names: dict[int, str]) -> Iterator[tuple[str, int | float | str]]:
    for stat in stats:
        name = names.get(stat.metadata_id, "")
        if stat.ref_value:
            yield name, names.get(stat.ref_value, "")
        elif stat.str_value:
            yield name, stat.str_value.decode("utf-8", "replace")
        else:
            yield name, stat.int64_value or stat.uint64_value or stat.double_value or 0


class _MemoryColumns:
    """Memory events as columns, texts as indexes into one list of strings."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {name: [] for name in _INTEGER_STATS.values()}
        self._texts: dict[str, list[str]] = {name: [] for name in _TEXT_STATS.values()}
        self._fragmentation: list[float] = []
        self._kinds: list[int] = []
        self._times: list[int] = []
        self._threads: list[int] = []
        self._without_address = 0
        self._unreadable = 0

    def add(self, kind: int, time_ps: int, thread: int, event: Any, names: dict[int, str]) -> None:
        """Append one event."""
        numbers: dict[str, int] = {}
        texts: dict[str, str] = {}
        fragmentation = 0.0
        unreadable = event.duration_ps < 0
        for stat in event.stats:
            name = names.get(stat.metadata_id, "")
            unreadable |= not name or (stat.ref_value != 0 and stat.ref_value not in names)
            if (column := _INTEGER_STATS.get(name)) is not None:
                value = stat.int64_value or stat.uint64_value
                numbers[column] = value if value < 1 << 63 else value - (1 << 64)
            elif (column := _TEXT_STATS.get(name)) is not None:
                ref = stat.ref_value
                texts[column] = (
                    names.get(ref, "") if ref else stat.str_value.decode("utf-8", "replace")
                )
            elif name == "fragmentation":
                fragmentation = stat.double_value or float(stat.int64_value)
        if "address" not in numbers:
            self._without_address += 1
            return
        self._unreadable += unreadable
        for name, column_values in self._numbers.items():
            column_values.append(numbers.get(name, 0))
        for name, text_values in self._texts.items():
            text_values.append(texts.get(name, ""))
        if " " in texts.get("shape", ""):  # some writers put blanks between the axes
            self._texts["shape"][-1] = texts["shape"].replace(" ", "")
        self._fragmentation.append(fragmentation)
        self._kinds.append(kind)
        self._times.append(time_ps)
        self._threads.append(thread)

    def damages(self, unnamed: int) -> tuple[Damage, ...]:
        """Return what could not be read; ``unnamed`` events of any kind have no name."""
        found = (
            ("no-address", self._without_address, "memory events have no address; left out"),
            (
                "unreadable-event",
                self._unreadable,
                "memory events end before they begin or refer to a name that the trace lacks",
            ),
            ("unnamed-event", unnamed, "events refer to a name that the trace lacks; left out"),
        )
        return tuple(
            Damage(id=name, count=count, message=f"{text} ({times(count)}).")
            for name, count, text in found
            if count
        )

    def table(self) -> pd.DataFrame:
        """Return the events sorted by time; equal times keep the order of the file."""
        columns: dict[str, Any] = {
            "time_ps": np.asarray(self._times, dtype=np.int64),
            "kind": np.asarray(self._kinds, dtype=np.int8),
            "fragmentation": np.asarray(self._fragmentation, dtype=np.float64),
            "thread": np.asarray(self._threads, dtype=np.int64),
        }
        for name, numbers in self._numbers.items():
            columns[name] = np.asarray(numbers, dtype=np.int64)
        for name, texts in self._texts.items():
            columns[name] = pd.Categorical(texts)
        columns["dtype"] = pd.Categorical(
            [DTYPE_NAMES.get(number, "") for number in self._numbers["dtype"]]
        )
        table = conform(pd.DataFrame(columns), EVENTS)
        order = np.argsort(columns["time_ps"], kind="stable")
        return table.iloc[order].reset_index(drop=True)
