"""Checks whether a trace is complete.

TensorFlow records the bytes in use in each memory event, under the allocator's lock
(``BFCAllocator::AddTraceMe``). In a complete trace the sum of the events equals this counter after every
event; if the trace begins late, both differ by a constant. Further checks compare sizes with requests
and shapes, and the marks of steps with the events and with the note of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import ITEM_BYTES, MOST_TOTAL
from analyzer.model.errors import TraceError
from analyzer.model.recording.records import CounterCheck, Damage, DamageReason, Integrity, Step
from analyzer.model.recording.timeline import UNPAIRED, pair_events, running_sum
from analyzer.model.units import GRANULE_BYTES, format_bytes, round_up
from analyzer.tracing.measure.trace_attribution import find_marks
from analyzer.tracing.measure.variable_buffers import AddressIndex, variable_bytes
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import RawTrace, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_LARGEST_BYTES: Final = 1 << 44  # a size above this (16 TiB) is a damaged number

_LATE_SHARE, _LATE_RUNS = 0.05, 2
"""The end is lost if a step ran more than this share and number of its ops after the last event."""


def check_trace(
    raw: RawTrace, allocations: pd.DataFrame, steps: Sequence[Step], note: RunNote | None
) -> Integrity:
    """Check whether a trace is complete.

    Args:
        allocations: The buffers of its events, with those from before the trace.
        note: The note of the capture; None for a trace of another program.

    Raises:
        TraceError: A size is negative or above 16 TiB.
    """
    from_start = note is not None and note.from_process_start
    accounts = _split_by_allocator(raw.events)
    return Integrity(
        counters=tuple(
            _check_counter(account, allocations, len(raw.events)) for account in accounts
        ),
        damages=(
            *raw.damages,
            *(
                damage
                for account in accounts
                for damage in _check_events(account, raw.events, from_start=from_start)
            ),
            *_check_steps(raw, steps, note),
            *(_check_capture(raw, allocations, steps, note) if note is not None else ()),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Account:
    """Columns of the events of one allocator, in order; ``rows`` are their instants."""

    allocator: str
    rows: Numbers
    time_ps: Numbers
    kind: Numbers
    address: Numbers
    requested: Numbers
    allocated: Numbers
    in_use: Numbers

    @property
    def is_bfc(self) -> bool:
        """Whether it is TensorFlow's best-fit allocator, whose rounding is known."""
        return "bfc" in self.allocator.lower() or self.allocator == "mklcpu"

    @property
    def before_bytes(self) -> int:
        """Allocated bytes in use before the first event."""
        return int(self.in_use[0] - self.kind[0] * self.allocated[0])

    def damages(self, reason: DamageReason, wrong: Mask) -> Iterator[Damage]:
        """Yield a damage if any event is wrong."""
        if wrong.any():
            yield Damage(
                reason=reason,
                count=int(wrong.sum()),
                allocator=self.allocator,
                time_ps=int(self.time_ps[np.argmax(wrong)]),
            )


def _split_by_allocator(events: pd.DataFrame) -> list[_Account]:
    """Return the events of each allocator; raise a TraceError if a size is impossible."""
    sizes = [events[f"{name}_bytes"].to_numpy(np.int64) for name in ("requested", "allocated")]
    for size in sizes:
        wrong = (size < 0) | (size > _LARGEST_BYTES)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise TraceError(
                f"The trace is damaged: memory event {at} is of {size[at]} bytes.",
                hint=f"Sizes are 0 to {format_bytes(_LARGEST_BYTES)}. Repeat the trace.",
            )
    columns = [events[name].to_numpy(np.int64) for name in ("time_ps", "kind", "address")]
    columns += [*sizes, events["in_use_bytes"].to_numpy(np.int64)]
    codes = events["allocator"].cat.codes.to_numpy()
    accounts = []
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        # With one allocator, views avoid copies of columns with millions of rows.
        own: slice | Numbers = slice(None) if len(rows) == len(events) else rows
        name = str(events["allocator"].cat.categories[code])
        accounts.append(_Account(name, rows, *(column[own] for column in columns)))
    return accounts


def _check_counter(account: _Account, allocations: pd.DataFrame, events: int) -> CounterCheck:
    """Compare the sum of ``allocations`` with TensorFlow's bytes in use.

    ``events`` is the number of events of all allocators.
    """
    if not account.in_use.any():
        return CounterCheck(allocator=account.allocator, events=0)
    own = allocations[allocations["allocator"] == account.allocator]
    born, dies, sizes = (own[name].to_numpy() for name in ("born", "dies", "allocated_bytes"))
    difference = running_sum(born, dies, sizes, events)[account.rows + 1] - account.in_use
    wrong = difference != 0
    return CounterCheck(
        allocator=account.allocator,
        events=len(account.rows),
        disagreeing=int(wrong.sum()),
        first_time_ps=int(account.time_ps[np.argmax(wrong)]) if wrong.any() else None,
        largest_difference_bytes=min(int(np.abs(difference).max(initial=0)), MOST_TOTAL),
    )


def _check_events(account: _Account, events: pd.DataFrame, *, from_start: bool) -> Iterator[Damage]:
    """Yield contradictions between the events of one allocator.

    Args:
        from_start: Whether the trace should contain all events of the process.
    """
    birth, partner, seen = account.kind > 0, *pair_events(account.kind, account.address)
    is_paired = partner != UNPAIRED
    lost = is_paired == birth  # an address is allocated twice or freed twice
    lost &= birth | seen  # the first event at an address may free an earlier buffer
    for size in (account.allocated, account.requested):
        lost |= ~birth & is_paired & (size != 0) & (size != size[partner])
    if account.in_use.any():
        change = account.kind * account.allocated
        lost |= np.diff(account.in_use, prepend=account.before_bytes) != change
        before = account.before_bytes
        if before < 0 or (from_start and before):
            first = np.arange(len(account.rows)) == 0
            yield from account.damages(DamageReason.LOST_BEGINNING, first)
    yield from account.damages(DamageReason.LOST_EVENTS, lost)
    altered = birth & (_contradicts_request(account) | _contradicts_shape(account, events))
    yield from account.damages(DamageReason.ALTERED_EVENTS, altered)


def _contradicts_request(account: _Account) -> Mask:
    """Return which chunks cannot result from their request.

    ``BFCAllocator`` rounds a request up to 256 bytes and splits a free chunk that is at least twice as
    large. Some allocators write no chunk size or no request (0).
    """
    requested, allocated = account.requested, account.allocated
    wrong = (allocated > 0) & (allocated < requested)
    if account.is_bfc and requested.any():
        rounded = round_up(requested)
        wrong |= (allocated % GRANULE_BYTES != 0) | (allocated < rounded)
        wrong |= allocated >= 2 * rounded
    return wrong


def _contradicts_shape(account: _Account, events: pd.DataFrame) -> Mask:
    """Return which requests differ from the bytes of the shape and element type of their event.

    Only events of the regions ``output`` and ``temp`` have the shape of the requested tensor.
    """
    rows = events.iloc[account.rows]
    counts = [_count_elements(str(text)) for text in rows["shape"].cat.categories]
    items = [
        -1 if name == "string" else ITEM_BYTES.get(str(name), -1)
        for name in rows["dtype"].cat.categories
    ]
    count = np.array([*counts, -1], np.int64)[rows["shape"].cat.codes.to_numpy()]
    item = np.array([*items, -1], np.int64)[rows["dtype"].cat.codes.to_numpy()]
    is_known = (count >= 0) & (item > 0) & rows["region"].isin(("output", "temp")).to_numpy()
    return np.asarray(is_known & (count * item != account.requested))


def _count_elements(shape: str) -> int:
    """Return the number of elements of a shape such as ``[3,4]``; -1 if unknown or too large."""
    axes = shape.removeprefix("[").removesuffix("]")
    if axes == shape:
        return -1
    total = 1
    for axis in axes.split(",") if axes else ():
        if not (axis.isascii() and axis.isdigit()):
            return -1
        total *= int(axis[:20])
    return total if total <= _LARGEST_BYTES else -1


def _check_steps(raw: RawTrace, steps: Sequence[Step], note: RunNote | None) -> Iterator[Damage]:
    """Yield damages of the marks of steps and of the trace's end."""
    inverted = [mark for mark in raw.step_markers if mark.end_ps < mark.start_ps]
    events = np.array([max(step.last - step.first + 1, 0) for step in steps])
    # A watched program may fail between the ops of its last step, which then may have no events.
    is_cut_short = note is not None and note.watch is not None and note.error is not None
    checked = len(steps) - 1 if is_cut_short else len(steps)
    empty = [step for step, count in zip(steps[:checked], events, strict=False) if not count]
    yield from _damages_of_marks(DamageReason.STEP_MARKS, [*inverted, *empty])
    starts = raw.op_runs["start_ps"].to_numpy()
    end_ps = int(raw.events["time_ps"].iloc[-1])
    unfinished = []
    for step in steps:
        bounds = [_start(step), max(end_ps, _start(step)), _end(step)]
        first, late, last = np.searchsorted(starts, bounds)
        if last - late > max(_LATE_SHARE * (last - first), _LATE_RUNS):
            unfinished.append(step)
    yield from _damages_of_marks(DamageReason.LOST_END, unfinished)


def _check_capture(
    raw: RawTrace, allocations: pd.DataFrame, steps: Sequence[Step], note: RunNote
) -> Iterator[Damage]:
    """Yield contradictions between the trace and the note of the capture."""
    if not note.snapshots:
        return
    inverted = [mark for mark in raw.markers if mark.end_ps < mark.start_ps]
    yield from _damages_of_marks(DamageReason.CAPTURE_MARKS, inverted)
    snapshots = find_marks(raw.markers, "snapshot")
    if len(snapshots) != len(note.snapshots):
        lost = abs(len(note.snapshots) - len(snapshots))
        yield Damage(reason=DamageReason.CAPTURE_MARKS, count=lost)
    # In a watched program only the first and the last step have a snapshot.
    done = len(note.snapshots) - 1 if note.watch is None else note.steps_done
    is_failed_step_marked = note.error is not None and len(steps) == done + 1
    if len(steps) != done and not is_failed_step_marked:
        yield Damage(reason=DamageReason.STEP_MARKS, count=abs(done - len(steps)))
    if note.watch is not None and note.watch.whole_run:
        return
    misplaced = _find_misplaced_marks(raw, steps, snapshots)
    yield from _damages_of_marks(DamageReason.CAPTURE_MARKS, misplaced)
    if len(snapshots) == len(note.snapshots):
        count = len(_find_moved_variables(raw, allocations, steps, note, snapshots))
        if count:
            yield Damage(reason=DamageReason.VARIABLES, count=count)


def _find_misplaced_marks(
    raw: RawTrace, steps: Sequence[Step], snapshots: Sequence[Span]
) -> list[Span]:
    """Return snapshots inside a step, then marks of phases and gradients between or after steps."""
    inside = [span for span in snapshots if any(_overlap(span, step) for step in steps)]
    outside = [
        span
        for span in (*find_marks(raw.markers, "phase"), *find_marks(raw.markers, "gradients"))
        if steps
        and span.start_ps >= _start(steps[0])
        and not any(_contains(step, span) for step in steps)
    ]
    if not any(_contains(step, span) for span in raw.markers for step in steps):
        outside = []
    return [*inside, *outside]


def _find_moved_variables(
    raw: RawTrace,
    allocations: pd.DataFrame,
    steps: Sequence[Step],
    note: RunNote,
    snapshots: Sequence[Span],
) -> set[str]:
    """Return variables with a buffer of another size, or with another buffer at the next step."""
    clock = raw.events["time_ps"].to_numpy()
    index = AddressIndex(allocations)
    requested = allocations["requested_bytes"].to_numpy()
    moved = set()
    for turn, (mark, addresses) in enumerate(zip(snapshots, note.snapshots, strict=True)):
        instant = int(np.searchsorted(clock, mark.start_ps, side="left")) - 1
        is_followed = turn < len(steps) and (note.watch is None or not turn)
        begin = steps[turn].first - 1 if is_followed else instant
        for address, variable in zip(addresses, note.variables, strict=False):
            size_bytes = variable_bytes(variable)
            if address is None or not size_bytes:
                continue
            row = index.at(address, instant)
            if row != index.at(address, begin) or (
                row is not None and not _may_hold(int(requested[row]), size_bytes)
            ):
                moved.add(variable.path)
    return moved


def _may_hold(buffer_bytes: int, size_bytes: int) -> bool:
    """Say whether a variable of ``size_bytes`` may lie in a buffer.

    It may be a slice of a larger buffer, but a slice that leaves less than 256 bytes is unlikely.
    """
    return buffer_bytes == size_bytes or round_up(buffer_bytes) > round_up(size_bytes)


def _damages_of_marks(reason: DamageReason, marks: Sequence[Span | Step]) -> Iterator[Damage]:
    if marks:
        yield Damage(reason=reason, count=len(marks), time_ps=marks[0].start_ps)


def _start(step: Step) -> int:
    assert step.start_ps is not None
    return step.start_ps


def _end(step: Step) -> int:
    assert step.end_ps is not None
    return step.end_ps


def _overlap(span: Span, step: Step) -> bool:
    return span.start_ps < _end(step) and _start(step) < span.end_ps


def _contains(step: Step, span: Span) -> bool:
    return _start(step) <= span.start_ps and span.end_ps <= _end(step)
