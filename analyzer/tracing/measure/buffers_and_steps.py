"""Events to buffers and steps, and checks whether a trace is complete.

An allocator acts under a lock, but if the clock is coarse, events of several threads have the same
time, and the trace stores each thread's events apart. The bytes in use in each event show their order.
Frees are matched with allocations by address.

A step is between two marks, or else a run of a function or of a compiled module, or all until an update.

TensorFlow records the bytes in use in each memory event, under the allocator's lock
(``BFCAllocator::AddTraceMe``). In a complete trace the sum of the events equals this counter after every
event; if the trace begins late, both differ by a constant. Further checks are of sizes and marks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from analyzer.model.contract.fields import MOST_TOTAL
from analyzer.model.contract.report_file import TrustFigures
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import is_in_gradient_scope
from analyzer.model.recording.labels import Mask
from analyzer.model.recording.records import (
    ALLOCATIONS,
    UNPAIRED,
    DamageReason,
    Step,
    conform,
    describe_damage,
    is_tpu,
    pair_events,
    running_sum,
    text_category,
)
from analyzer.model.units import format_bytes, round_up
from analyzer.tracing.derive.op_names import GUARDS_BYTES, is_apply
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace, Span, Spans


def pair_frees(events: pd.DataFrame) -> pd.DataFrame:
    """Return the buffers of ``events`` (columns of ``EVENTS``), without attribution.

    Contradictions are repaired here and reported by ``check_trace``.
    """
    count = len(events)
    birth = events["kind"].to_numpy() > 0

    partner, _ = pair_events(
        events["kind"].to_numpy(),
        events["address"].to_numpy(),
        events["allocator"].cat.codes.to_numpy(),
    )

    # The event that describes a buffer: its allocation, or its free if it is from before the trace.
    describes = birth | (partner == UNPAIRED)
    origin = np.flatnonzero(describes)
    is_born = birth[origin]
    born = np.where(is_born, origin, -1)
    dies = np.where(is_born, count, origin)

    ending = np.flatnonzero(partner != UNPAIRED)
    row = np.cumsum(describes) - 1
    dies[row[partner[ending]]] = ending

    # The last entry is that of no event.
    times = np.append(events["time_ps"].to_numpy(), 1)

    def choose_text(name: str) -> pd.Categorical:
        texts = [*map(str, events[name].cat.categories), ""]
        codes = events[name].cat.codes.to_numpy()[origin]

        return text_category(np.where(is_born, codes, len(texts) - 1), texts)

    numbers = ("address", "requested_bytes", "allocated_bytes")

    columns = {
        "allocator": events["allocator"].iloc[origin].reset_index(drop=True),
        **{name: events[name].to_numpy()[origin] for name in numbers},
        "born": born,
        "dies": dies,
        "born_ps": pd.arrays.IntegerArray(times[born], ~is_born),
        "dies_ps": pd.arrays.IntegerArray(times[dies], dies == count),
        "run_id": np.where(is_born, events["run_id"].to_numpy()[origin], 0),
        # A free has the name of the op that was running, which is unrelated to the buffer.
        **{name: choose_text(name) for name in ("op", "region", "dtype", "shape")},
        "category": "unattributed",
    }

    return conform(pd.DataFrame(columns, copy=False), ALLOCATIONS)


def add_earlier_buffers(
    events: pd.DataFrame,
    allocations: pd.DataFrame,
    *known: Mapping[int, int],
) -> pd.DataFrame:
    """Return ``allocations`` with rows for buffers from before the trace.

    ``known`` are groups (address -> requested bytes) without events; each is added whole or not at all.
    """
    old = allocations[allocations["born"] < 0]
    freed = old.groupby("allocator", observed=True)["allocated_bytes"].sum()

    first = events.drop_duplicates("allocator")
    before = first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
    names = first["allocator"].astype(str)

    rows: list[tuple[str, Any, int, int]] = []
    waiting = list(known)

    for name, size_bytes in zip(names, before.tolist(), strict=True):
        left = size_bytes - int(freed.get(name, 0))

        for group in tuple(waiting) if left > 0 else ():
            # Values from NumPy are not in the allocator: if not all fit, add none.
            chunks = [(name, at, size, round_up(size)) for at, size in group.items()]
            total = sum(chunk for *_, chunk in chunks)

            if total <= left:
                waiting.remove(group)
                rows += chunks
                left -= total

        if left > 0:
            rows.append((name, pd.NA, left, left))

    if not rows:
        return allocations

    columns = ["allocator", "address", "requested_bytes", "allocated_bytes"]
    more = pd.DataFrame(rows, columns=columns).assign(
        born=-1,
        dies=len(events),
        run_id=0,
        category="unattributed",
    )

    added = conform(more, ALLOCATIONS)

    return pd.DataFrame(
        {name: _join(allocations[name], added[name]) for name in allocations},
        copy=False,
    )


def _join(column: pd.Series[Any], more: pd.Series[Any]) -> Any:
    """Return a column with the rows of another one of the same dtype appended."""
    if str(column.dtype) == "category":
        return pd.api.types.union_categoricals([column, more], sort_categories=True)

    return pd.concat([column, more], ignore_index=True)


_LARGEST_BYTES = 1 << 44  # a size above this (16 TiB) is a damaged number

# The end is lost if a step ran more than this share and number of its ops after the last event.
_LATE_SHARE = 0.05
_LATE_RUNS = 2


def check_trace(
    raw: RawTrace,
    allocations: pd.DataFrame,
    steps: Sequence[Step],
    note: RunNote,
    allocator: str,
) -> TrustFigures:
    """Check whether a trace is complete.

    ``allocations`` are the buffers of its events, with those from before the trace. A TraceError says
    that a size is negative or above 16 TiB.
    """
    events = raw.events
    damages = list(raw.damages)
    figures = TrustFigures(is_damaged=False)

    for column in ("requested_bytes", "allocated_bytes"):
        is_wrong = ~events[column].between(0, _LARGEST_BYTES)
        if is_wrong.any():
            at = int(np.flatnonzero(is_wrong)[0])
            raise TraceError(
                f"The trace is damaged: memory event {at} is of {events[column].iloc[at]} bytes.",
                f"Sizes are 0 to {format_bytes(_LARGEST_BYTES)}. Repeat the trace.",
            )

    for group, own in events.groupby("allocator", observed=True):
        name = str(group)
        if is_tpu(name):  # its frees have no sizes
            continue

        if name == allocator:
            figures = _check_counter(name, own, allocations, len(events))

        for reason, wrong in _check_events(own, from_start=note.from_process_start):
            if wrong.any():
                damages.append(describe_damage(reason, int(wrong.sum()), name))

    found = _check_steps(raw, steps, note)

    damages += [describe_damage(reason, count) for reason, count in found if count]

    return replace(
        figures,
        is_damaged=bool(damages) or figures.is_damaged,
        damages=tuple(damages),
    )


def _check_counter(
    name: str,
    own: pd.DataFrame,
    allocations: pd.DataFrame,
    events: int,
) -> TrustFigures:
    """Compare the sum of the allocations with TensorFlow's bytes in use in one allocator's events.

    ``own`` are these events, at their instants; ``events`` is the number of events of all allocators.
    """
    in_use = own["in_use_bytes"].to_numpy()
    if not in_use.any():
        return TrustFigures(is_damaged=False)

    buffers = allocations[allocations["allocator"] == name]
    columns = ("born", "dies", "allocated_bytes")
    born, dies, sizes = (buffers[column].to_numpy() for column in columns)

    difference = running_sum(born, dies, sizes, events)[own.index + 1] - in_use
    wrong = difference != 0
    return TrustFigures(
        is_damaged=bool(wrong.any()),
        events=len(own),
        events_disagreeing=int(wrong.sum()),
        largest_difference_bytes=min(
            int(np.abs(difference).max(initial=0)), MOST_TOTAL
        ),
    )


def _check_events(
    own: pd.DataFrame,
    *,
    from_start: bool,
) -> Iterator[tuple[DamageReason, Mask]]:
    """Yield the events of one allocator that contradict others or themselves, shape ``(n,)``.

    ``from_start`` says whether the trace should contain all events of the process.
    """
    names = ("kind", "address", "requested_bytes", "allocated_bytes", "in_use_bytes")
    kind, address, requested, allocated, in_use = (
        own[one].to_numpy(np.int64) for one in names
    )
    birth = kind > 0
    partner, seen = pair_events(kind, address)

    is_paired = partner != UNPAIRED
    lost = is_paired == birth  # an address is allocated twice or freed twice
    lost &= birth | seen  # the first event at an address may free an earlier buffer

    for size in (allocated, requested):
        lost |= ~birth & is_paired & (size != 0) & (size != size[partner])

    if in_use.any():
        change = kind * allocated
        before = in_use[0] - change[0]
        lost |= np.diff(in_use, prepend=before) != change

        if before < 0 or (from_start and before):
            yield DamageReason.LOST_BEGINNING, np.arange(len(own)) == 0

    yield DamageReason.LOST_EVENTS, lost


def _check_steps(
    raw: RawTrace,
    steps: Sequence[Step],
    note: RunNote,
) -> Iterator[tuple[DamageReason, int]]:
    """Yield damages of the marks of steps and of the trace's end."""
    wrong = sum(mark.end_ps < mark.start_ps for mark in raw.step_markers)

    # A program may fail between the ops of its last step, or while XLA compiles it: without events.
    is_cut_short = note.error is not None
    checked = steps[: len(steps) - is_cut_short]

    if raw.step_markers:
        wrong += sum(step.last < step.first for step in checked)

    # In a watched program only the first and the last step have a snapshot.
    done = len(note.snapshots) - 1 if note.watch is None else note.steps_done
    is_failed_step_marked = note.error is not None and len(steps) == done + 1

    if note.snapshots and not is_failed_step_marked:
        wrong += abs(done - len(steps))

    yield DamageReason.STEP_MARKS, wrong

    starts = raw.op_runs["start_ps"].to_numpy()
    end_ps = int(raw.events["time_ps"].iloc[-1])
    unfinished = 0

    # On a simulated card, ops of ours follow on the host.
    for step in steps if note.simulated_card is None else ():
        start = step.start_ps or 0
        end = step.end_ps or 0
        first, late, last = np.searchsorted(starts, [start, max(end_ps, start), end])

        most = max(_LATE_SHARE * (last - first), _LATE_RUNS)
        unfinished += last - late > most

    yield DamageReason.LOST_END, int(unfinished)


# Share of the largest run's bytes below which a function is part of the input pipeline or a metric.
_SHARE_OF_LARGEST = 1 / 8

# Share of all requested bytes that the steps have to request together.
_SHARE_OF_ALL = 1 / 2

# Type in the name of a compiled module's run (``gpu_executable.cc``).
MODULE_TYPES = frozenset({"XLA GPU module", "XLA CPU module"})


def find_steps(events: pd.DataFrame, markers: Sequence[Span]) -> tuple[Step, ...]:
    """Return the steps of the marks, in order of time.

    Of nested marks (``fit`` inside a user's) the outermost counts; one that ends too early is ignored.
    """
    times = events["time_ps"].to_numpy()
    steps: list[Step] = []
    end_ps = -1

    for marker in sorted(markers, key=lambda span: (span.start_ps, -span.end_ps)):
        if marker.start_ps < end_ps or marker.end_ps < marker.start_ps:
            continue

        end_ps = marker.end_ps
        number = marker.stats.get("step_num")

        steps.append(
            Step(
                index=len(steps),
                number=int(number) if isinstance(number, int | float) else None,
                first=int(np.searchsorted(times, marker.start_ps, side="left")),
                last=int(np.searchsorted(times, marker.end_ps, side="right")) - 1,
                start_ps=marker.start_ps,
                end_ps=marker.end_ps,
            )
        )

    return tuple(steps)


def find_run_spans(raw: RawTrace, allocator: str) -> Spans:
    """Return the spans of the steps; empty if there is no evidence."""
    events = raw.events[raw.events["allocator"] == allocator]
    is_trial = (events["region"] == "") & (events["requested_bytes"] >= GUARDS_BYTES)
    births = events[(events["kind"] > 0) & ~is_trial]

    return (
        _find_functions(raw, births)
        or _find_calls(raw.calls)
        or _find_modules(raw, events)
        or _find_updates(raw, births)
    )


def _find_functions(raw: RawTrace, births: pd.DataFrame) -> Spans:
    """Return the runs of the function that requests the most; training before other runs."""
    in_run = births[births["run_id"] != 0]
    sizes = in_run.groupby("run_id")["requested_bytes"].sum()
    if len(sizes):
        sizes = sizes[sizes >= _SHARE_OF_LARGEST * sizes.max()]

    least = _SHARE_OF_ALL * births["requested_bytes"].sum()
    if sizes.sum() < least or not sizes.sum():
        return ()

    in_run = in_run[in_run["run_id"].isin(sizes.index)]
    training = in_run["op"].map(is_in_gradient_scope).astype(bool)

    if training.any():
        chosen = in_run["run_id"][training].unique()
        in_run = in_run[in_run["run_id"].isin(chosen)]

    bounds = in_run.groupby("run_id")["time_ps"].agg(["min", "max"])
    is_chosen = raw.function_runs["run_id"].isin(bounds.index)
    bounds = bounds.join(raw.function_runs[is_chosen].set_index("run_id"))

    starts = bounds[["min", "start_ps"]].min(axis=1)
    ends = bounds[["max", "end_ps"]].max(axis=1)

    return _spans(zip(starts, ends, strict=True))


def _find_calls(calls: Iterable[Span]) -> Spans:
    """Return the calls of the JAX function that takes the most time."""
    times: Counter[str] = Counter()
    for call in calls:
        times[call.name] += call.end_ps - call.start_ps

    longest = max(times, key=lambda name: times[name], default="")

    return _spans(
        (call.start_ps, call.end_ps) for call in calls if call.name == longest
    )


def _find_modules(raw: RawTrace, events: pd.DataFrame) -> Spans:
    """Return the runs of compiled modules on the thread that requests memory."""
    modules = [op for op, kind in raw.op_types.items() if kind in MODULE_TYPES]
    runs = raw.op_runs[raw.op_runs["op"].isin(modules)]
    runs = runs[runs["thread"].isin(events["thread"].unique())]

    if runs.empty:
        return ()

    runs = runs[runs["thread"] == runs["thread"].iloc[0]]

    return _spans(zip(runs["start_ps"], runs["end_ps"], strict=True))


def _find_updates(raw: RawTrace, births: pd.DataFrame) -> Spans:
    """Return the spans between the updates of the variables in an eager program."""
    ops = raw.op_runs["op"]
    applied = raw.op_runs[ops.map(lambda op: is_apply(raw.op_types.get(op, op)))]
    if applied.empty or births.empty:
        return ()

    starts = applied["start_ps"].to_numpy()
    ends = applied["end_ps"].to_numpy()
    times = births["time_ps"].to_numpy()
    is_backward = births["op"].map(lambda op: op.endswith("Grad"))
    backward = times[is_backward.to_numpy(bool)]

    # Gradients between two updates belong to another step.
    before_start = np.searchsorted(backward, starts[1:])
    before_end = np.searchsorted(backward, ends[:-1])
    last = np.append(np.flatnonzero(before_start > before_end), len(ends) - 1)

    begin = int(times[0])
    spans = []

    for at in last.tolist():
        spans.append((begin, int(ends[at])))
        later = times[times > ends[at]]
        begin = int(later[0]) if len(later) else int(ends[at])

    return _spans(spans)


def _spans(bounds: Iterable[tuple[int, int]]) -> Spans:
    """Return spans without names or threads, in order of time."""
    ordered = sorted((int(start), int(end)) for start, end in bounds)
    return tuple(Span("", start, end, 0, {}) for start, end in ordered)
