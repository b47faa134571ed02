"""Whether the marks of a trace can be what a run wrote: its steps, and the marks of our own capture.

A step whose mark is shifted, lost or cut peaks elsewhere, and nothing in the allocator's events shows
it. What does: marks of one thread lie inside each other or apart, each step of a function runs the
same ops, a run of the step's function lies within its mark, and our own capture looks where the
variables lie before the first step and after each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analyzer.model.recording.allocator_events import PINNED
from analyzer.model.recording.records import Damage, Step
from analyzer.model.units import times
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.parse.xplane import MARKER_PREFIX, RawTrace, Span

_NO_RUN = (0, -1)
"""Run ids of what belongs to no run of a function: outside one, and folded while a graph is made."""

_MOST_OF = 0.5
"""A function's run is the step's own where it made more than this share of its allocations."""

_LATE_SHARE, _LATE_RUNS = 0.05, 2
"""A step that ran more of its ops, as a share and a number, after the last event has lost some."""

_SHORT_OF = 0.7
"""A step that ran the same ops with fewer events than this share of another's has lost some."""

_ITERATOR = "Iterator"
"""In the name of ops that take data from ``tf.data`` (``IteratorGetNext``), unless one is renamed."""


def damages_of_marks(
    raw: RawTrace, steps: Sequence[Step], note: RunNote | None
) -> Iterator[Damage]:
    """Yield what the marks of a whole trace cannot be.

    Args:
        raw: The trace.
        steps: The steps that were made of its marks.
        note: The run note of our own capture, None for a trace of others.
    """
    yield from _inverted(raw)
    yield from _overlapping([*raw.step_markers, *raw.markers])
    # A program may fail between two of its ops: what that step ran says nothing.
    cut_short = note is not None and note.watch is not None and note.error is not None
    yield from _without_events(raw, steps[:-1] if cut_short else steps)
    yield from _lost_end(raw, steps)
    yield from _cut_runs(raw.events, steps)
    if note is not None and note.snapshots:
        yield from _of_own_capture(raw, steps, note)


def _damage(name: str, which: Sequence[Span | Step], message: str) -> Iterator[Damage]:
    if which:
        yield Damage(
            id=name,
            count=len(which),
            message=f"{message} ({times(len(which))}).",
            time_ps=which[0].start_ps,
        )


def _inverted(raw: RawTrace) -> Iterator[Damage]:
    marks = [span for span in raw.step_markers if span.end_ps < span.start_ps]
    yield from _damage("inverted-mark", marks, "step marks end before they begin; left out")
    marks = [span for span in raw.markers if span.end_ps < span.start_ps]
    yield from _damage("inverted-note", marks, "notes of the capture end before they begin")
    runs = raw.op_runs
    count = int((runs["end_ps"] < runs["start_ps"]).sum())
    if count:
        yield Damage(
            id="inverted-run",
            count=count,
            message=f"runs of ops end before they begin ({times(count)}).",
        )


def _overlapping(marks: Sequence[Span]) -> Iterator[Damage]:
    """Yield marks that begin inside another of their thread and end after it."""
    wrong = []
    open_until: dict[int, list[int]] = {}
    for mark in sorted(marks, key=lambda span: (span.start_ps, -span.end_ps)):
        ends = open_until.setdefault(mark.thread, [])
        while ends and ends[-1] <= mark.start_ps:
            ends.pop()
        if ends and mark.end_ps > ends[-1]:
            wrong.append(mark)
        else:
            ends.append(mark.end_ps)
    yield from _damage("overlapping-marks", wrong, "marks begin inside another and end after it")


def _without_events(raw: RawTrace, steps: Sequence[Step]) -> Iterator[Damage]:
    """Yield steps that lack the memory events, or the runs of ops, that others like them have."""
    events = np.array([max(step.last - step.first + 1, 0) for step in steps])
    if len(steps) and not events.any():
        yield from _damage(
            "steps-without-events", steps, "steps hold no memory event; all lie outside of them"
        )
    if len(steps) < 2:
        return
    runs = np.array([_inside(raw, step) for step in steps])
    empty = (events == 0) & (events.max() > 0)
    yield from _damage(
        "step-without-events",
        [step for step, is_so in zip(steps, empty, strict=True) if is_so],
        "steps hold no memory event, where others do: a part of the trace is lost",
    )
    own = np.array([_own_events(raw, step) for step in steps])
    most = np.array([own[1:][runs[1:] == number].max(initial=0) for number in runs])
    short = ~empty & (runs > 0) & (own < _SHORT_OF * most)
    yield from _damage(
        "short-step",
        [step for step, is_so in zip(steps, short, strict=True) if is_so],
        "steps ran the same ops as another with far fewer memory events: some are lost",
    )
    idle = (runs == 0) & (runs[1:].max() > 0)
    yield from _damage(
        "step-without-runs",
        [step for step, is_so in zip(steps, idle, strict=True) if is_so],
        "steps show no run of an op, where others do: a part of the trace is lost",
    )


def _own_events(raw: RawTrace, step: Step) -> int:
    """Count the memory events that a step's own ops made, and no other thread's meanwhile.

    What fills a ``tf.data`` buffer falls into whichever step it happens beside. Of a function: the
    allocations of the run that made most, the same in each run. Of ops outside of any: the events of
    the threads on which the step's ops ran.
    """
    events = raw.events.iloc[step.first : step.last + 1]
    run = events["run_id"].to_numpy()[events["kind"].to_numpy() > 0]
    counts = np.unique(run[~np.isin(run, _NO_RUN)], return_counts=True)[1]
    if len(counts):
        return int(counts.max())
    starts = raw.op_runs["start_ps"].to_numpy()
    assert step.end_ps is not None
    first, last = np.searchsorted(starts, [_start(step), step.end_ps])
    threads = np.unique(raw.op_runs["thread"].to_numpy()[first:last])
    return int(np.isin(events["thread"].to_numpy(), threads).sum()) if len(threads) else len(events)


def _lost_end(raw: RawTrace, steps: Sequence[Step]) -> Iterator[Damage]:
    """Yield the steps of which many ops ran after the last memory event."""
    starts = raw.op_runs["start_ps"].to_numpy()
    end_ps = int(raw.events["time_ps"].iloc[-1])
    cut = []
    for step in steps:
        assert step.end_ps is not None
        first, end, last = np.searchsorted(
            starts, [_start(step), max(end_ps, _start(step)), step.end_ps]
        )
        if last - end > max(_LATE_SHARE * (last - first), _LATE_RUNS):
            cut.append(step)
    yield from _damage(
        "lost-end", cut, "steps ran ops after the last memory event: the trace's end is lost"
    )


def _inside(raw: RawTrace, step: Step) -> int:
    """Count the runs of ops, and the marks of our own capture, that begin in a step."""
    starts = raw.op_runs["start_ps"].to_numpy()
    assert step.start_ps is not None
    assert step.end_ps is not None
    first, last = np.searchsorted(starts, [step.start_ps, step.end_ps])
    marks = sum(step.start_ps <= span.start_ps <= step.end_ps for span in raw.markers)
    return int(last - first) + marks


def _cut_runs(events: pd.DataFrame, steps: Sequence[Step]) -> Iterator[Damage]:
    """Yield steps whose function allocates outside their mark too."""
    birth = (events["kind"] > 0).to_numpy()
    run = events["run_id"].to_numpy()
    run = np.where(birth & ~np.isin(run, _NO_RUN), run, 0)
    numbers, of_all = np.unique(run, return_counts=True)
    cut = []
    for step in steps:
        own = run[step.first : step.last + 1]
        own = own[own != 0]
        if not len(own):
            continue
        found, counts = np.unique(own, return_counts=True)
        at = int(np.argmax(counts))
        whole = int(of_all[np.searchsorted(numbers, found[at])])
        if counts[at] > _MOST_OF * len(own) and whole > counts[at]:
            cut.append(step)
    yield from _damage(
        "cut-step",
        cut,
        "step marks cut through a run of the step's function, which goes on outside",
    )


def _of_own_capture(raw: RawTrace, steps: Sequence[Step], note: RunNote) -> Iterator[Damage]:
    """Check the marks against the note, which knows how many there were, and of which steps."""
    looks = [span for span in raw.markers if span.name == f"{MARKER_PREFIX}snapshot"]
    if len(looks) != len(note.snapshots):
        yield Damage(
            id="lost-notes",
            count=abs(len(note.snapshots) - len(looks)),
            message=f"The trace holds {len(looks)} of the {len(note.snapshots)} moments at which the "
            "capture looked at the variables.",
        )
    yield from _lost_gradients(raw, note)
    # A program's own steps are looked at before the first and after the last alone.
    done = len(note.snapshots) - 1 if note.watch is None else note.steps_done
    failed = note.error is not None
    if len(steps) != done and not (failed and len(steps) == done + 1):
        yield Damage(
            id="lost-steps",
            count=abs(done - len(steps)),
            message=f"The trace has marks of {len(steps)} steps; {done} were run.",
        )
    numbers = [step.number for step in steps]
    if numbers != list(range(len(steps))):
        yield Damage(
            id="step-numbers",
            count=len(numbers),
            message="The steps are not numbered in the order in which they ran.",
        )
    moved = [span for span in looks if any(_meet(span, step) for step in steps)]
    yield from _damage("moved-note", moved, "notes taken between steps lie inside one")
    if note.watch is None:
        yield from _between_steps(raw, steps)
    around = list(zip(looks, [*looks[1:], None], strict=False))
    if note.watch is not None:
        around = around[:1] * len(steps)
    between = [
        step
        for step, (before, after) in zip(steps, around, strict=False)
        if _start(step) < before.start_ps or (after is not None and after.start_ps < _start(step))
    ]
    yield from _damage("moved-step", between, "step marks lie apart from the notes around them")
    inside = [
        span
        for span in raw.markers
        if span.name in (f"{MARKER_PREFIX}phase", f"{MARKER_PREFIX}gradients")
        and not any(_within(span, step) for step in steps)
    ]
    if any(_within(span, step) for span in raw.markers for step in steps):
        yield from _damage("cut-note", inside, "notes taken inside a step lie outside of each")


def _between_steps(raw: RawTrace, steps: Sequence[Step]) -> Iterator[Damage]:
    """Yield the memory events between steps, where our own capture runs no op.

    A step that takes its data from an iterator may have it filled meanwhile: of that nothing is known.
    A copy from or to a card gives its pinned buffer back when the card tells of its end
    (``GPUUtil``'s callbacks on the event manager's thread), which may be after the step's.
    """
    names = raw.op_runs["op"].astype(str)
    if not steps or names.str.contains(_ITERATOR, regex=False).any():
        return
    times_ps = raw.events["time_ps"].to_numpy()
    is_inside = ((raw.events["kind"] < 0) & (raw.events["allocator"] == PINNED)).to_numpy(copy=True)
    for step in steps:
        is_inside |= (_start(step) <= times_ps) & (times_ps <= (step.end_ps or 0))
    first, last = np.searchsorted(times_ps, [_start(steps[0]), steps[-1].end_ps or 0])
    moved = np.flatnonzero(~is_inside[first:last]) + first
    if len(moved):
        yield Damage(
            id="moved-events",
            count=len(moved),
            message="memory events lie between the steps, where the capture ran nothing "
            f"({times(len(moved))}).",
            time_ps=int(times_ps[moved[0]]),
        )


def _lost_gradients(raw: RawTrace, note: RunNote) -> Iterator[Damage]:
    """Yield the marks of an eager step's gradients that are lost, and of the phases that made them.

    Each was taken right after a backward pass or before an update, which are marked too.
    """
    gradients, phases = (
        sum(span.name == f"{MARKER_PREFIX}{name}" for span in raw.markers)
        for name in ("gradients", "phase")
    )
    taken = len(note.eager_gradients)
    lost = abs(taken - gradients) + max(taken - phases, 0)
    if lost:
        yield Damage(
            id="lost-phases",
            count=lost,
            message=f"notes of the backward pass or the update are lost ({times(lost)}).",
        )
    yield from _damage(
        "moved-gradients",
        _apart_from_phases(raw.markers),
        "notes of gradients lie neither after a backward pass nor before an update",
    )


def _apart_from_phases(markers: Sequence[Span]) -> list[Span]:
    """Return the marks of gradients that do not lie right after a backward pass or before an update.

    Right after: no other pass or update ends, and no other mark is made, in between.
    """
    phases = [span for span in markers if span.name == f"{MARKER_PREFIX}phase"]
    marks = [span for span in markers if span.name == f"{MARKER_PREFIX}gradients"]
    ends = sorted([(span.end_ps, span.stats.get("phase") == "backward") for span in phases])
    starts = sorted([(span.start_ps, span.stats.get("phase") == "update") for span in phases])
    wrong = []
    for mark in marks:
        before = max((end for end in ends if end[0] <= mark.start_ps), default=(0, False))
        after = min((start for start in starts if start[0] >= mark.end_ps), default=(0, False))
        follows = before[1] and not any(before[0] <= n.start_ps < mark.start_ps for n in marks)
        leads = after[1] and not any(mark.end_ps < n.end_ps <= after[0] for n in marks)
        if not follows and not leads:
            wrong.append(mark)
    return wrong


def _start(step: Step) -> int:
    assert step.start_ps is not None
    return step.start_ps


def _meet(span: Span, step: Step) -> bool:
    assert step.start_ps is not None
    assert step.end_ps is not None
    return span.start_ps < step.end_ps and step.start_ps < span.end_ps


def _within(span: Span, step: Step) -> bool:
    assert step.start_ps is not None
    assert step.end_ps is not None
    return step.start_ps <= span.start_ps and span.end_ps <= step.end_ps
