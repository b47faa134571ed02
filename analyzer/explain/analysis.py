"""The analysis of a recording: its peak, the buffers alive at it, and the waste.

The steady step is the last one: the first one creates optimizer slots and traces functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analyzer.explain.questions.fragmentation import Fragmentation, measure_fragmentation
from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import NO_FACTS, PoolFacts, VerdictFigures
from analyzer.model.contract.report.subject import CardUse
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Finding, Recording, Step
from analyzer.model.recording.schema import TRIAL_ROLE
from analyzer.model.recording.timeline import (
    Peak,
    Timeline,
    alive_at,
    card_number,
    find_peak,
    main_allocator_rows,
    sum_by_category,
    timeline,
    undivided_rows,
)
from analyzer.tracing.measure.buffer_uses import BufferUse


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A recording with its peak; findings are made from it.

    Attributes:
        recording: The recording.
        rows: The allocations of its allocator.
        line: Live bytes at every instant.
        step: The steady step; None if the recording has no steps.
        first, last: The instants of the steady step.
        peak: The steady step's peaks.
        peak_ever: The peaks of the whole recording.
        alive: Buffers alive at the requested peak, with their category at that instant.
        uses: Uses of a buffer, by its index in the allocations table.
        fragmentation: Waste inside the pool.
        pool: Results of replays through the simulated allocator.
        verdict: Whether the step fits a card or a limit; None before ``judge``.
        findings: The findings.
    """

    recording: Recording
    rows: pd.DataFrame
    line: Timeline
    step: Step | None
    first: int
    last: int
    peak: Peak
    peak_ever: Peak
    alive: pd.DataFrame
    uses: Mapping[int, BufferUse]
    fragmentation: Fragmentation
    pool: PoolFacts = NO_FACTS
    verdict: VerdictFigures | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def categories(self) -> dict[str, int]:
        """Requested bytes of each category at the requested peak."""
        return sum_by_category(self.alive)


def steady_step(recording: Recording, line: Timeline | None = None) -> Step | None:
    """Return the last step with events, else the last step; None if there is no step.

    Steps that try algorithms, such as one with a smaller last batch, count only if all others do. Of a
    program's own steps, which may differ, it is the one with the highest peak in ``line``.
    """
    with_events = [step for step in recording.steps if step.last >= step.first]
    chosen = with_events or recording.steps
    if recording.watch is not None and line is not None and with_events and not recording.error:
        return max(
            with_events, key=lambda one: find_peak(line, one.first, one.last).allocated_bytes
        )
    table = recording.allocations
    trying = set(table["step"][(table["role"] == TRIAL_ROLE).to_numpy(dtype=bool)].dropna())
    steady = [step for step in chosen if step.index not in trying] or chosen
    return steady[-1] if steady else None


def analyse(recording: Recording, uses: Mapping[int, BufferUse] | None = None) -> Analysis:
    """Return the peak, the buffers alive at it, and the waste; callers add findings.

    Raises:
        AccountingError: the categories do not add up to the peak.
    """
    rows = main_allocator_rows(recording)
    count = len(recording.events)
    line = timeline(rows, count)
    step = steady_step(recording, line)
    # A step without events peaks at the bytes alive before it.
    first, last = (min(step.first, step.last), step.last) if step is not None else (0, count - 1)
    peak = find_peak(line, first, last)
    alive = alive_at(rows, peak.requested_instant)
    total = sum(sum_by_category(alive).values())
    if total != peak.requested_bytes:
        raise AccountingError(
            f"the categories at the peak add up to {total} B, the peak is {peak.requested_bytes} B"
        )
    return Analysis(
        recording=recording,
        rows=rows,
        line=line,
        step=step,
        first=first,
        last=last,
        peak=peak,
        peak_ever=find_peak(line, 0, count - 1),
        alive=alive,
        uses=uses or {},
        fragmentation=measure_fragmentation(recording, rows, peak.allocated_instant),
    )


PERSISTENT = frozenset(
    {
        Category.PARAMETER.value,
        Category.OPTIMIZER_STATE.value,
        Category.CONSTANT.value,
        Category.INPUT.value,
    }
)
"""Categories that are alive in all steps by design."""


def card_uses(analysis: Analysis) -> tuple[CardUse, ...]:
    """Return the use of each card, by its number; empty for a single card."""
    recording = analysis.recording
    table, events = recording.allocations, recording.events
    names = map(str, table["allocator"].unique())
    found = [(number, name) for name in names if (number := card_number(name)) is not None]
    if len(found) < 2:
        return ()
    cards = recording.phantom_run.cards if recording.phantom_run is not None else ()
    uses = []
    for number, name in sorted(found):
        line = timeline(undivided_rows(table[table["allocator"] == name]), len(events))
        peak = find_peak(line, analysis.first, analysis.last)
        own = events[events["allocator"] == name]
        last = own.iloc[-1] if len(own) else None
        available = 0 if last is None else int(last["available_bytes"])
        limit = None if not available or last is None else int(last["in_use_bytes"]) + available
        uses.append(
            CardUse(
                number=number,
                allocator=name,
                card=cards[number] if number < len(cards) else "",
                requested_bytes=peak.requested_bytes,
                allocated_bytes=peak.allocated_bytes,
                allocated_ever_bytes=int(line.allocated.max()),
                memory_limit_bytes=limit,
                is_shown=name == recording.allocator,
            )
        )
    return tuple(uses)
