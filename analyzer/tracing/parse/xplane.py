"""Reader of profiler traces (``.xplane.pb``), without TensorFlow.

A trace contains *planes* (hosts and devices), a plane *lines* (threads) and a line events. Allocators
write each allocation and free as an event ``MemoryAllocation`` or ``MemoryDeallocation`` with
statistics. The profiler does not sample these events.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError

from analyzer.model.errors import TraceError
from analyzer.model.recording.records import Damage, DamageReason
from analyzer.model.recording.schema import TextNumbers
from analyzer.tracing.parse.logdir import suggest_command
from analyzer.tracing.parse.protobuf import Event, ModulePlane, Plane, decode_text
from analyzer.tracing.parse.wire.event_columns import EventBlock, LineReader
from analyzer.tracing.parse.wire.memory_columns import GrowingTable, KernelColumns, MemoryColumns
from analyzer.tracing.parse.wire.plane_names import (
    CALL,
    EXECUTOR,
    MARK,
    XLA_STATS,
    PlaneNames,
    find_places,
)
from analyzer.tracing.parse.wire.plane_names import MARKER_PREFIX as MARKER_PREFIX
from analyzer.tracing.parse.wire.plane_names import WATCHED_STEP as WATCHED_STEP
from analyzer.tracing.parse.wire.wire_fields import (
    BYTES,
    ByteSource,
    Field,
    Positions,
    WireError,
    iterate_fields,
    open_source,
)

_MOST_RATIO: Final = 16
"""Limit of the ratio of compression of a trace; TensorFlow's traces compress by about 6."""

_LEAST_EVENT_BYTES: Final = 8
"""Minimum average size of an event: name, start and length. TensorFlow's events have 27 to 64 bytes;
millions of empty ones would only fill memory."""

_MOST_PS: Final = 1 << 61  # limit of times in picoseconds: 26 days
_PLANES, _LINES = 1, 3  # field numbers (``xplane.proto``) of a trace and of a plane

_TPU: Final = b"/device:TPU:"
_MODULES: Final = b"/host:metadata"
"""Plane of the compiled modules (``kMetadataPlaneName``); each is a statistic ``Hlo Proto``."""

_MOST_STEPS: Final = 200_000
"""Limit of the step markers. Each is a row of the report; a normal profile has a few steps."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval on one thread."""

    name: str
    start_ps: int  # picoseconds on the trace's clock
    end_ps: int
    thread: int
    stats: dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class RawTrace:
    """The memory events, marks and op runs of a trace."""

    events: pd.DataFrame  # table with the columns of ``EVENTS``, sorted by time
    step_markers: tuple[Span, ...]
    markers: tuple[Span, ...]
    op_runs: pd.DataFrame  # on the host: ``op``, ``start_ps``, ``end_ps``, ``thread``, by start
    op_types: Mapping[str, str]  # op -> type, from names of events and annotations of kernels
    kernels: pd.DataFrame  # launches of kernels and copies; see ``KernelColumns.kernels``
    function_runs: pd.DataFrame  # runs of functions; see ``KernelColumns.function_runs``
    calls: tuple[Span, ...] = ()
    cards: tuple[Mapping[str, int | float | str], ...] = ()  # properties such as ``core_count``
    devices: tuple[str, ...] = ()  # names of the device planes, such as ``/device:GPU:0``
    damages: tuple[Damage, ...] = ()
    modules: Mapping[str, bytes] = field(default_factory=dict)  # name -> compiled HloProto
    ran_xla: bool = False  # whether any event names an HLO module


def read_trace(path: Path, *, progress: Callable[[float], None] | None = None) -> RawTrace:
    """Read one ``.xplane.pb`` or ``.xplane.pb.gz``; ``progress`` gets the share done, 0 to 1.

    A TraceError says that it is no trace, is truncated, or holds no memory events.
    """
    is_open = False
    try:
        with open_source(path, most_ratio=_MOST_RATIO) as source:
            is_open = True
            reading = _Reading(source, progress or (lambda share: None))
            if not source.size_bytes:
                raise TraceError(
                    f"{path} is empty.",
                    hint="The profiler probably stopped before it wrote; repeat the trace.",
                )
            if not any(lines or plane.event_metadata for plane, lines in reading.planes):
                raise TraceError(
                    f"{path} holds no profiler planes.",
                    hint="Expected the .xplane.pb of tf.profiler; repeat the trace.",
                )
            raw = reading.trace()
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name an existing .xplane.pb, run folder or logdir.",
        ) from None
    except (WireError, DecodeError):
        raise TraceError(
            f"{path} is not a profiler trace, or is truncated.",
            hint=suggest_command(Path(path))
            or "Expected the .xplane.pb of tf.profiler; unpack an archive, copy the file again, or "
            "repeat the trace.",
        ) from None
    except ValueError as error:
        if is_open:
            what, hint = f"damaged: it holds {error}", "Copy the file or repeat the trace."
        else:
            what = f"a truncated or damaged gzip file ({error})"
            hint = "Copy the file again from its source."
        raise TraceError(f"{path} is {what}.", hint=hint) from None
    if raw.events.empty:
        raise TraceError(
            f"{path} holds no memory events.",
            hint="TensorFlow's CPU allocator records none unless TF_CPU_ALLOCATOR_USE_BFC=1 is set "
            "before TensorFlow is imported; cuda_malloc_async records none. `analyze trace MODEL` "
            "captures with the right settings.",
        )
    return raw


class _Reading:
    """A trace while it is read, block by block; only the needed columns are held."""

    def __init__(self, source: ByteSource, progress: Callable[[float], None]) -> None:
        """Find the lines of all planes; raise a WireError if ``source`` is no trace."""
        self._source, self._progress = source, progress
        self._kernels, self._ops = KernelColumns(), TextNumbers()
        self._op_types: dict[str, str] = {}
        self._cards: list[dict[str, int | float | str]] = []
        self._runs = GrowingTable(op=np.int32, start_ps=np.int64, end_ps=np.int64, thread=np.int32)
        self._spans: dict[str, list[tuple[int, Span]]] = {"marks": [], "steps": [], "calls": []}
        self._unnamed, self._ran_xla = 0, False
        self._events = 0
        self.planes: list[tuple[Any, list[Field]]] = []
        self._modules: dict[str, bytes] = {}
        for one in iterate_fields(source, 0, source.size_bytes):
            if one.wire == BYTES and one.number == _PLANES:
                self.planes.append(self._plane(one))
        has_tpu = any(plane.name.startswith(_TPU) for plane, _ in self.planes)
        self._memory = MemoryColumns("TPU" if has_tpu else "device")

    def _plane(self, whole: Field) -> tuple[Any, list[Field]]:
        """Return a plane without its lines, and the positions of the lines."""
        lines = []
        rest = bytearray()
        start = whole.start
        for one in iterate_fields(self._source, whole.start, whole.end):
            if one.number == _LINES and one.wire == BYTES:
                lines.append(one)
                rest += self._source.read(start, one.begins)
                start = one.end
        rest += self._source.read(start, whole.end)
        plane = Plane.FromString(bytes(rest))
        if plane.name == _MODULES:
            for entry in ModulePlane.FromString(bytes(rest)).modules:
                for stat in entry.value.stats:
                    if stat.bytes_value:
                        self._modules[decode_text(entry.value.name)] = stat.bytes_value
        return plane, lines

    def trace(self) -> RawTrace:
        """Read the events of all lines."""
        times_ns: list[int] = []
        filled: list[int] = []
        for plane, lines in self.planes:
            names = PlaneNames(plane, self._ops, self._memory.texts)
            self._op_types.update(names.op_types)
            self._ran_xla |= not XLA_STATS.isdisjoint(names.stats.values())
            if plane.name.startswith(b"/device:GPU"):
                own = _plain_stats(plane.stats, names.stats)
                self._cards.append({"plane": decode_text(plane.name), **dict(own)})
            for line in lines:
                before = self._events
                reader = LineReader(self._source, line.start, line.end)
                for block in reader.blocks():
                    self._add(block, len(times_ns), names)
                    self._progress(reader.at / self._source.size_bytes)
                if self._events > before:
                    filled.append(reader.timestamp_ns)
                times_ns.append(reader.timestamp_ns)
        self._progress(1.0)
        # Other writers than the profiler use times since 1970, too long for 64 bits in picoseconds.
        origin_ns = min(filled) if filled and max(filled) * 1000 >= _MOST_PS else 0
        base_ps = [(time_ns - origin_ns) * 1000 for time_ns in times_ns]
        if any(abs(base) >= _MOST_PS for base in base_ps):
            raise ValueError("times that lie months apart")
        return self._whole(np.array(base_ps, np.int64))

    def _add(self, block: EventBlock, line: int, names: PlaneNames) -> None:
        self._events += len(block.name_id)
        if self._events * _LEAST_EVENT_BYTES > self._source.size_bytes:
            raise ValueError(f"{self._events} almost empty events")
        if (np.abs((block.offset_ps, block.duration_ps)) >= _MOST_PS).any():
            raise ValueError("times that lie months apart")
        place = find_places(names.event_keys, block.name_id)
        self._unnamed += int((place < 0).sum())
        kind = names.kind[place]
        memory = np.where(np.abs(kind) == 1, kind, 0)
        if memory.any():
            self._memory.add(block, memory, line, names)
        stat_names = block.stat_names((memory == 0)[block.stat_event])
        is_other = (memory == 0) & (kind != MARK)
        is_step = np.zeros(len(kind), bool)
        step_key = names.stat_key("step_num")
        if names.is_host and step_key is not None:
            is_step[block.stat_event[stat_names == step_key]] = True
            is_step &= is_other
        found = {"marks": kind == MARK, "steps": is_step, "calls": kind == CALL}
        for name, rows in found.items():
            for row in np.flatnonzero(rows).tolist():
                self._spans[name].append((line, _span(block, row, line, names)))
        if len(self._spans["steps"]) + len(self._spans["calls"]) > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS:,} step markers")
        self._kernels.add(block, stat_names, line, names)
        if names.is_host:
            if (kind == EXECUTOR).any():
                self._kernels.add_runs(block, kind == EXECUTOR, line, names)
            op = names.op[place]
            ran = np.flatnonzero((op >= 0) & is_other & ~is_step)
            start = block.offset_ps[ran]
            end = start + block.duration_ps[ran]
            self._runs.extend(len(ran), op=op[ran], start_ps=start, end_ps=end, thread=line + 1)

    def _whole(self, base_ps: Positions) -> RawTrace:
        def sort(name: str) -> tuple[Span, ...]:
            moved = [
                replace(one, start_ps=one.start_ps + base, end_ps=one.end_ps + base)
                for line, one in self._spans[name]
                for base in (int(base_ps[line]),)
            ]
            return tuple(sorted(moved, key=lambda one: (one.start_ps, -one.end_ps)))

        thread, start = self._runs.pop("thread"), self._runs.pop("start_ps")
        base = base_ps[thread - 1]
        start += base
        order = np.argsort(start, kind="stable")
        end = self._runs.pop("end_ps")
        end += base
        op = pd.Categorical.from_codes(self._runs.pop("op")[order], self._ops.texts)
        runs = {"start_ps": start[order], "end_ps": end[order], "thread": thread[order]}
        planes = (decode_text(plane.name) for plane, _ in self.planes)
        lost = self._memory.unreadable + self._unnamed
        return RawTrace(
            events=self._memory.table(base_ps),
            step_markers=sort("steps"),
            markers=sort("marks"),
            op_runs=pd.DataFrame({"op": op, **runs}, copy=False),  # sorted by start
            op_types=self._op_types,
            kernels=self._kernels.kernels(base_ps),
            function_runs=self._kernels.function_runs(base_ps),
            calls=sort("calls"),
            cards=tuple(self._cards),
            devices=tuple(name for name in planes if name.startswith("/device:")),
            damages=(Damage(reason=DamageReason.UNREADABLE_EVENTS, count=lost),) if lost else (),
            modules=self._modules,
            ran_xla=self._ran_xla,
        )


def _span(block: EventBlock, row: int, line: int, names: PlaneNames) -> Span:
    """Return one event with its statistics; its times are relative to its line's."""
    event = Event.FromString(block.content(row))
    name, start = names.events.get(event.metadata_id, ""), event.offset_ps
    stats = dict(_plain_stats(event.stats, names.stats))
    return Span(name, start, start + event.duration_ps, line + 1, stats)


def _plain_stats(stats: Any, names: dict[int, str]) -> Iterator[tuple[str, int | float | str]]:
    for stat in stats:
        name = names.get(stat.metadata_id, "")
        if stat.ref_value:
            yield name, names.get(stat.ref_value, "")
        elif stat.str_value:
            yield name, decode_text(stat.str_value)
        else:
            yield name, stat.int64_value or stat.uint64_value or stat.double_value or 0
