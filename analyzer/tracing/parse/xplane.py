"""Reader of profiler traces (``.xplane.pb``), without TensorFlow.

A trace contains *planes* (hosts and devices), a plane *lines* (threads) and a line events. Allocators
write each allocation and free as an event ``MemoryAllocation`` or ``MemoryDeallocation`` with
statistics. The profiler does not sample these events.

XProf or TensorBoard derives ``memory_profile.json`` from a trace: at most 1,000 memory events of each
allocator, without steps, kernels and runs of ops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from google.protobuf.message import DecodeError

from analyzer.model.contract.fields import numpy_name
from analyzer.model.contract.reading import GZIP_MAGIC, read_regular_file, unpack
from analyzer.model.contract.report_file import DamageRow
from analyzer.model.errors import TraceError
from analyzer.model.progress import report_stage
from analyzer.model.recording.records import (
    AUTOTUNING,
    EVENTS,
    HOST_ALLOCATORS,
    DamageReason,
    TextNumbers,
    conform,
    describe_damage,
    find_last_runs,
)
from analyzer.tracing.parse.event_columns import (
    CALL,
    CAPTURED,
    EXECUTOR,
    MARK,
    XLA_STATS,
    ColumnPieces,
    EventBlock,
    KernelColumns,
    MemoryColumns,
    PlaneNames,
    Positions,
    read_blocks,
    read_run_ids,
)
from analyzer.tracing.parse.protobuf import Event, PlainLine, PlainSpace, decode_text
from analyzer.tracing.parse.run_folder import suggest_command

# Minimum average size of an event: name, start and length. TensorFlow's events have 27 to 64 bytes;
# millions of empty ones would only fill memory.
_LEAST_EVENT_BYTES = 8

_MOST_PS = 1 << 61  # limit of times in picoseconds: 26 days
_FAR_TIMES = "times that lie months apart"

_TPU = b"/device:TPU:"

# Plane of the compiled modules (``kMetadataPlaneName``); each is a statistic ``Hlo Proto``.
_MODULES = b"/host:metadata"

# Passes of XLA's compiler over a module (``RunHloPasses`` in ``gpu_compiler.cc``), as an op that ran.
# On a card they request memory for trials of algorithms alone.
_COMPILATION = "HLO Transforms"

# Limit of the step markers. Each is a row of the report; a normal profile has a few steps.
_MOST_STEPS = 200_000


Statistic = int | float | str  # of a plane or an event


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval on one thread."""

    name: str
    start_ps: int  # picoseconds on the trace's clock
    end_ps: int
    thread: int
    stats: dict[str, Statistic]


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class RawTrace:
    """The memory events, marks and op runs of a trace."""

    events: pd.DataFrame  # table with the columns of ``EVENTS``, sorted by time
    step_markers: Spans
    markers: Spans
    # On the host: ``op``, ``start_ps``, ``end_ps``, ``thread``, by start
    op_runs: pd.DataFrame
    # The same for calls of iterators and of their functions
    pipeline_runs: pd.DataFrame
    # Run ids of functions that a data set calls
    pipeline_ids: frozenset[int]
    # Op -> type, from names of events and annotations of kernels
    op_types: Mapping[str, str]
    # Launches of kernels and copies; see ``KernelColumns.kernels``
    kernels: pd.DataFrame
    # Runs of functions; see ``KernelColumns.function_runs``
    function_runs: pd.DataFrame
    calls: Spans = ()
    # Properties such as ``core_count``
    cards: tuple[Mapping[str, Statistic], ...] = ()
    damages: tuple[DamageRow, ...] = ()
    # Name -> compiled HloProto
    modules: Mapping[str, bytes] = field(default_factory=dict)
    ran_xla: bool = False  # whether any event names an HLO module


def read_trace(path: Path) -> RawTrace:
    """Read one ``.xplane.pb`` or ``.xplane.pb.gz``.

    A ``memory_profile.json`` of XProf has the events alone. A TraceError says that the file is no trace,
    is truncated, or holds no memory events.
    """
    try:
        content = _read_content(path)
        if content.lstrip()[:1] == b"{":
            empty = _Reading(PlainSpace()).trace()
            return replace(empty, events=read_memory_profile(content))

        space = PlainSpace.FromString(content)

        if not any(plane.lines or plane.event_metadata for plane in space.planes):
            raise TraceError(
                f"{path} holds no profiler planes.",
                "Expected the .xplane.pb of tf.profiler; repeat the trace.",
            )

        raw = _Reading(space).trace()
    except DecodeError:
        raise TraceError(
            f"{path} is not a profiler trace, or is truncated.",
            suggest_command(path)
            or "Expected the .xplane.pb of tf.profiler; unpack an archive, copy the file again, or "
            "repeat the trace.",
        ) from None
    except ValueError as error:
        raise TraceError(
            f"{path} is damaged ({error}).",
            suggest_command(path) or "Copy the file or repeat the trace.",
        ) from None

    if raw.events.empty:
        raise TraceError(
            f"{path} holds no memory events.",
            "TensorFlow's CPU allocator records none unless TF_CPU_ALLOCATOR_USE_BFC=1 is set "
            "before TensorFlow is imported; cuda_malloc_async records none. `analyze trace MODEL` "
            "captures with the right settings.",
        )

    return raw


def _read_content(path: Path) -> bytes:
    """Return the content of a trace file, unpacked; a TraceError says that it cannot be read."""
    try:
        content = read_regular_file(path)
        if content.startswith(GZIP_MAGIC):
            content = unpack(content)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read: {error.strerror or error}.",
            "Name an existing .xplane.pb, run folder or logdir.",
        ) from None
    except ValueError as error:
        raise TraceError(
            f"{path} cannot be read: {error}.",
            "Copy the file again from its source. A trace has at most 2 GiB.",
        ) from None

    if not content:
        raise TraceError(
            f"{path} is empty.",
            "The profiler probably stopped before it wrote; repeat the trace.",
        )

    return content


class _Reading:
    """A trace while it is read, block by block; only the needed columns are held."""

    def __init__(self, space: Any) -> None:
        """Start with a ``PlainSpace``."""
        self._planes = space.planes
        self._size_bytes = space.ByteSize()

        has_tpu = any(plane.name.startswith(_TPU) for plane in space.planes)
        self._memory = MemoryColumns("TPU" if has_tpu else "device")
        self._kernels = KernelColumns(self._memory.texts)
        self._ops = TextNumbers()

        self._runs = ColumnPieces(
            op=np.int32,
            start_ps=np.int64,
            end_ps=np.int64,
            thread=np.int32,
        )

        self._spans: dict[str, list[tuple[int, Span]]] = {
            "marks": [],
            "steps": [],
            "calls": [],
        }

        self._pipeline_ids: set[int] = set()
        self._unnamed = 0
        self._events = 0

    def trace(self) -> RawTrace:
        """Read the events of all lines."""
        times_ns: list[int] = []
        filled = []
        op_types = {}

        cards: list[dict[str, Statistic]] = []
        ran_xla = False
        read_bytes = 0

        for plane in self._planes:
            names = PlaneNames(plane, self._ops, self._memory.texts)
            op_types.update(names.op_types)
            ran_xla |= not XLA_STATS.isdisjoint(names.stats.values())

            if plane.name.startswith(b"/device:GPU"):
                own = _plain_stats(plane.stats, names.stats)
                cards.append({"plane": decode_text(plane.name), **dict(own)})

            for content in plane.lines:
                line = PlainLine.FromString(content)
                if line.events:
                    filled.append(line.timestamp_ns)

                self._events += len(line.events)
                if self._events * _LEAST_EVENT_BYTES > self._size_bytes:
                    raise ValueError(f"{self._events} almost empty events")

                for block in read_blocks(line.events):
                    self._add(block, len(times_ns), names)

                times_ns.append(line.timestamp_ns)
                read_bytes += len(content)
                report_stage("reading the trace", read_bytes / self._size_bytes)

        base_ps = _find_times(times_ns, filled)
        runs = self._op_runs(base_ps)
        is_pipeline = runs["op"].str.endswith("::")
        lost = self._memory.unreadable + self._unnamed
        damage = describe_damage(DamageReason.UNREADABLE_EVENTS, lost)

        return RawTrace(
            events=_name_requests(self._memory.table(base_ps), runs, op_types),
            step_markers=self._sort("steps", base_ps),
            markers=self._sort("marks", base_ps),
            op_runs=runs[~is_pipeline],
            pipeline_runs=runs[is_pipeline],
            pipeline_ids=frozenset(self._pipeline_ids),
            op_types=op_types,
            kernels=self._kernels.kernels(base_ps),
            function_runs=self._kernels.function_runs(base_ps),
            calls=self._sort("calls", base_ps),
            cards=tuple(cards),
            damages=(damage,) if lost else (),
            modules=_find_modules(self._planes),
            ran_xla=ran_xla,
        )

    def _add(self, block: EventBlock, line: int, names: PlaneNames) -> None:
        if (np.abs((block.offset_ps, block.duration_ps)) >= _MOST_PS).any():
            raise ValueError(_FAR_TIMES)

        place = names.event_keys.get_indexer(block.name_id)
        self._unnamed += int((place < 0).sum())
        kind = names.kind[place]
        is_memory = np.abs(kind) == 1

        if is_memory.any():
            self._memory.add(block, np.where(is_memory, kind, 0), line, names)

        stat_names = np.full(len(block.stat_event), -1)
        others = ~is_memory[block.stat_event]
        stat_names[others] = block.stats(others)["name_id"]

        is_step = np.zeros(len(kind), bool)
        step_key = names.stat_key("step_num")

        if names.is_host and step_key is not None:
            is_step[block.stat_event[stat_names == step_key]] = True
            is_step &= kind != MARK

        found = {"marks": kind == MARK, "steps": is_step, "calls": kind == CALL}
        for name, rows in found.items():
            for row in np.flatnonzero(rows).tolist():
                span = _span(block.events[row], line, names)
                self._spans[name].append((line, span))

        if len(self._spans["steps"]) + len(self._spans["calls"]) > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS:,} step markers")

        self._kernels.add(block, stat_names, line, names)

        if not names.is_host:
            return

        is_executor = kind == EXECUTOR
        if is_executor.any():
            self._kernels.add_runs(block, is_executor, line, names)

        called = read_run_ids(block, kind == CAPTURED, names)[1]
        self._pipeline_ids.update(called.tolist())

        op = names.op[place]
        ran = np.flatnonzero((op >= 0) & (kind != MARK) & ~is_memory & ~is_step)
        start = block.offset_ps[ran]
        end = start + block.duration_ps[ran]

        self._runs.extend(
            len(ran),
            op=op[ran],
            start_ps=start,
            end_ps=end,
            thread=line + 1,
        )

    def _sort(self, name: str, base_ps: Positions) -> Spans:
        """Return the spans with a name by time, on the trace's clock."""
        moved = []

        for line, span in self._spans[name]:
            base = int(base_ps[line])
            start = span.start_ps + base
            end = span.end_ps + base
            moved.append(replace(span, start_ps=start, end_ps=end))

        return tuple(sorted(moved, key=lambda span: (span.start_ps, -span.end_ps)))

    def _op_runs(self, base_ps: Positions) -> pd.DataFrame:
        thread = self._runs.pop("thread")
        start = self._runs.pop("start_ps") + base_ps[thread - 1]
        end = self._runs.pop("end_ps") + base_ps[thread - 1]

        order = np.argsort(start, kind="stable")
        op = pd.Categorical.from_codes(self._runs.pop("op")[order], self._ops.texts)

        columns = {
            "op": op,
            "start_ps": start[order],
            "end_ps": end[order],
            "thread": thread[order],
        }

        return pd.DataFrame(columns, copy=False)


def _name_requests(
    events: pd.DataFrame,
    runs: pd.DataFrame,
    op_types: Mapping[str, str],
) -> pd.DataFrame:
    """Return the events, with the op of each request that an ``Xla`` op or XLA's compiler makes.

    XLA compiles such an op alone, and requests its results without its name
    (``xla_compile_on_demand_op.cc``).
    """
    alone = [op for op, kind in op_types.items() if kind.startswith("Xla")]
    if not alone and _COMPILATION not in op_types:
        return events

    last = find_last_runs(events, runs[runs["op"].isin(alone)])
    is_alone = (events["op"] == "") & (last["end_ps"] >= last["time_ps"])
    is_trial = find_inside(events, runs[runs["op"] == _COMPILATION])
    is_trial &= ~events["allocator"].isin(HOST_ALLOCATORS)

    names = last["op_x"].astype(object).mask(is_alone, last["op_y"].astype(object))
    names = names.mask(is_trial, AUTOTUNING).where(events["kind"] == 1, last["op_x"])

    return events.assign(op=names.astype("category"))


def find_inside(events: pd.DataFrame, runs: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return which events lie in one of the runs on their thread, shape ``(n,)``."""
    time_ps = events["time_ps"]
    threads = events["thread"].to_numpy()
    is_inside = np.zeros(len(events), bool)

    for thread, own in runs.groupby("thread"):
        here = threads == thread
        begun = np.searchsorted(np.sort(own["start_ps"]), time_ps[here], side="right")
        is_inside[here] = begun > np.searchsorted(np.sort(own["end_ps"]), time_ps[here])

    return is_inside


def _find_times(times_ns: Sequence[int], filled: Sequence[int]) -> Positions:
    """Return the times of the lines in picoseconds; ``filled`` are those of lines with events.

    Other writers than the profiler use times since 1970, too long for 64 bits in picoseconds.
    """
    is_far = max(filled, default=0) * 1000 >= _MOST_PS
    origin_ns = min(filled) if is_far else 0
    base_ps = [(time_ns - origin_ns) * 1000 for time_ns in times_ns]

    if any(abs(base) >= _MOST_PS for base in base_ps):
        raise ValueError(_FAR_TIMES)

    return np.array(base_ps, np.int64)


def _find_modules(planes: Any) -> dict[str, bytes]:
    """Return the compiled modules by name."""
    modules = {}

    for plane in planes:
        if plane.name != _MODULES:
            continue

        for entry in plane.event_metadata:
            for stat in entry.value.stats:
                if stat.bytes_value:
                    modules[decode_text(entry.value.name)] = stat.bytes_value

    return modules


def _span(content: bytes, line: int, names: PlaneNames) -> Span:
    """Return one event with its statistics; its times are relative to its line's."""
    event = Event.FromString(content)
    name = names.events.get(event.metadata_id, "")
    start = event.offset_ps
    stats = dict(_plain_stats(event.stats, names.stats))

    return Span(name, start, start + event.duration_ps, line + 1, stats)


def _plain_stats(
    stats: Any,
    names: dict[int, str],
) -> Iterator[tuple[str, Statistic]]:
    for stat in stats:
        name = names.get(stat.metadata_id, "")

        if stat.ref_value:
            yield name, names.get(stat.ref_value, "")
        elif stat.str_value:
            yield name, decode_text(stat.str_value)
        else:
            yield name, stat.int64_value or stat.uint64_value or stat.double_value or 0


_KINDS = {"ALLOCATION": 1, "DEALLOCATION": -1}
_UNKNOWN = ["", "INVALID", "unknown"]

# Field of a snapshot of XProf -> column of ``EVENTS``.
_FIELDS = {
    "timeOffsetPs": "time_ps",
    "requestedBytes": "requested_bytes",
    "allocationBytes": "allocated_bytes",
    "freeMemoryBytes": "available_bytes",
    "peakBytesInUse": "peak_in_use_bytes",
    "tfOpName": "op",
    "regionType": "region",
    "dataType": "dtype",
    "tensorShape": "shape",
}


def read_memory_profile(content: bytes) -> pd.DataFrame:
    """Return the events in a ``memory_profile.json``; a ValueError says what it holds instead.

    XProf writes no ids of runs: the ops of graphs count as one run.
    """
    profile = msgspec.json.decode(content)
    if not isinstance(profile, dict) or "memoryProfilePerAllocator" not in profile:
        raise ValueError("JSON without memory events")

    snapshots: list[dict[str, Any]] = []

    try:
        for name, own in profile["memoryProfilePerAllocator"].items():
            for kind in ("memoryProfileSnapshots", "sampledTimelineSnapshots"):
                snapshots += [{**one, "allocator": name} for one in own.get(kind, ())]

        if not snapshots:
            return conform(pd.DataFrame(), EVENTS)

        table = pd.json_normalize(snapshots)
        table.columns = [name.rpartition(".")[2] for name in table]
        table = table.rename(columns=_FIELDS, errors="raise")
        sizes = table[["heapAllocatedBytes", "stackReservedBytes"]].astype("int64")
        texts = table[["op", "dtype", "shape"]].replace(_UNKNOWN, "")
        table = table.assign(
            **texts,
            kind=table["memoryActivity"].map(_KINDS),
            in_use_bytes=sizes.sum(axis=1),
            run_id=table["op"].str.contains("/"),
            thread=1,
        )
    except (KeyError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"an event without its fields: {error}") from None

    table = table.assign(dtype=table["dtype"].map(numpy_name))
    events = conform(table.dropna(subset="kind"), EVENTS).drop_duplicates()

    return events.sort_values("time_ps", kind="stable", ignore_index=True)
