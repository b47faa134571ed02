"""The need: the largest memory of the process in its life, with its parts.

Building, the first step and later steps each have a requested peak. The largest one, rounding and
fragmentation give the part in TensorFlow's pool. On a card, memory beside the pool is added. Trials of
algorithms count if they fit: TensorFlow skips those that find no memory (``conv_ops_gpu.h``,
``LaunchAutotunedConv``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.explain.analysis import Analysis, sum_requested
from analyzer.explain.trace_integrity import highest_counter
from analyzer.model.contract.report_file import LifePhase, Need
from analyzer.model.graph.graph_index import GRADIENT_ROLE, UPDATE_ROLE
from analyzer.model.recording.records import (
    TRIAL,
    WORKSPACE,
    Kind,
    Recording,
    find_own_peak,
    main_allocator_rows,
    timeline,
)
from analyzer.model.units import BoundedBytes


def begins_with_process(recording: Recording) -> bool:
    """Return whether nothing was allocated before the first event."""
    rows = main_allocator_rows(recording)
    return bool(len(rows)) and bool((rows["born"] >= 0).all())


def find_need(analysis: Analysis) -> tuple[Need, Need]:
    """Return the need in the pool without trials of algorithms, and with all of them."""
    recording = analysis.recording
    all_peaks = _phase_peaks(analysis, analysis.line.requested)
    peaks = _peaks_without(analysis, (TRIAL,)) or all_peaks
    pool = _pool_need(analysis)

    # Under that limit cuDNN takes algorithms with less workspace.
    if pool.bytes < max(peaks.values()):
        peaks = _peaks_without(analysis, (TRIAL, WORKSPACE)) or peaks

    least = _make_need(peaks, pool, pool.bytes)
    most = _make_need(
        all_peaks,
        pool,
        max(pool.bytes, analysis.peak_ever.allocated_bytes),
    )

    if most.first_step is not None and recording.kind is not Kind.TRACE:
        widened = _widen_by_updates(analysis, most.first_step)
        most = replace(most, first_step=widened)

    own_bytes = find_own_peak(recording)
    outside = _find_earlier_peak(recording, least)
    least = replace(least, before_trace=outside, own_peak_bytes=own_bytes)
    most = replace(most, before_trace=outside, own_peak_bytes=own_bytes)

    if least.pool.bytes < most.pool.bytes:
        most = replace(most, without_trials_bytes=least.pool.bytes)

    return least, most


def _widen_by_updates(analysis: Analysis, size: BoundedBytes) -> BoundedBytes:
    """Return the first step's peak with the range of runs that update variables earlier or later.

    An update may run at any time after its gradient is known (``ExecutorState::ScheduleReady``). Until
    it ends it holds the gradient, or a temporary as large; trials of later ops meet either.
    """
    step = analysis.recording.steps[0]
    requested = analysis.line.requested[step.first + 1 : step.last + 2]
    instant = step.first + int(requested.argmax())

    rows = analysis.rows
    rows = rows[rows["born"].between(step.first, instant)]

    gradients = rows[rows["role"] == GRADIENT_ROLE]
    updates = rows[rows["role"].isin((GRADIENT_ROLE, UPDATE_ROLE))]

    begun_bytes = sum_requested(gradients)
    is_alive = updates["dies"] > instant
    held_bytes = sum_requested(updates[is_alive])
    waiting_bytes = max(begun_bytes - held_bytes, 0)

    return BoundedBytes.around(
        size.bytes, size.range.low - held_bytes, size.range.high + waiting_bytes
    )


def _peaks_without(analysis: Analysis, regions: Sequence[str]) -> dict[LifePhase, int]:
    """Return the peaks of the phases without buffers of some regions; empty if there are none."""
    rows = analysis.rows
    is_left_out = rows["region"].astype(str).isin(regions)
    if not is_left_out.any():
        return {}

    line = timeline(rows[~is_left_out], len(analysis.recording.events))

    return _phase_peaks(analysis, line.requested)


def _find_earlier_peak(recording: Recording, least: Need) -> BoundedBytes | None:
    """Return the requested peak outside the trace, by TensorFlow's counter; None if it is lower."""
    allocator = least.allocator.bytes
    seen = least.pool
    own_bytes = find_own_peak(recording)

    counted = highest_counter(recording)
    if own_bytes is not None and own_bytes > seen.bytes:
        return BoundedBytes.exactly(own_bytes - allocator)

    if counted > seen.bytes and not begins_with_process(recording):
        # The trace does not show whether the earlier peak was trials: the range begins at its own.
        earlier_bytes = counted - allocator
        return BoundedBytes.around(
            earlier_bytes,
            seen.range.low - allocator,
            earlier_bytes,
        )

    return None


def _make_need(
    peaks: Mapping[LifePhase, int],
    pool: BoundedBytes,
    highest: int,
) -> Need:
    """Return the need whose part in the pool is ``highest``, with the width of ``pool``."""
    below = pool.bytes - pool.range.low
    above = pool.range.high - pool.bytes
    phases: dict[str, Any] = {
        phase.name.lower(): BoundedBytes.around(size, size - below, size + above)
        for phase, size in peaks.items()
    }

    return Need(
        **phases,
        allocator=BoundedBytes.exactly(max(highest - max(peaks.values()), 0)),
    )


def _phase_peaks(analysis: Analysis, requested: np.ndarray) -> dict[LifePhase, int]:
    """Return the requested peak of each phase that the recording shows.

    ``requested`` has one entry per instant, from -1 on.
    """
    steps = analysis.full_steps
    if not steps or not begins_with_process(analysis.recording):
        return {LifePhase.STEADY_STEP: int(requested.max())}

    start = steps[0].first + 1
    end = steps[0].last + 2
    peaks = {LifePhase.BUILDING: int(requested[:start].max())}

    if len(steps) == 1:
        return {**peaks, LifePhase.STEADY_STEP: int(requested[start:].max())}

    peaks[LifePhase.FIRST_STEP] = int(requested[start:end].max())

    return {**peaks, LifePhase.STEADY_STEP: int(requested[end:].max(initial=0))}


def _pool_need(analysis: Analysis) -> BoundedBytes:
    """Return the lowest limit that works without trials; the allocated peak if it was not searched for.

    If the sampled schedules were replayed under limits, they give the range; else it is as wide as the
    range of the allocated peak.
    """
    ever = analysis.peak_ever.allocated_bytes
    stated = analysis.recording.uncertainty
    central = analysis.safe_limit_bytes or ever

    # no need is below TensorFlow's own figure
    if find_own_peak(analysis.recording) is not None:
        central = max(central, ever)

    if stated is None or analysis.recording.kind is Kind.TRACE:
        return BoundedBytes.exactly(central)

    if stated.limit_low_bytes is not None and stated.limit_high_bytes is not None:
        return BoundedBytes.around(
            central,
            stated.limit_low_bytes,
            stated.limit_high_bytes,
        )

    allocated = analysis.peak.allocated_bytes
    low = stated.allocated_low_bytes or allocated
    high = (stated.allocated_high_bytes or allocated) - (stated.workspace_bytes or 0)

    return BoundedBytes.around(
        central,
        central - max(allocated - low, 0),
        central + max(high - allocated, 0),
    )


def with_replay(
    need: Need,
    limit: BoundedBytes,
    *,
    runs: bool,
    is_measured: bool,
    is_own: bool,
) -> Need:
    """Return the need in the pool after a run or a replay under the limit.

    A success under the limit bounds the need from above if the very allocations were replayed
    (``is_measured``). A failure bounds it from below; the difference is fragmentation. ``is_own`` is
    whether it was the run itself, which waits for frees as a replay does not; another run may need
    more.
    """
    pool = need.pool
    part = need.allocator
    if runs and is_own:
        if pool.bytes <= limit.range.high:
            return need

        room = max(limit.range.high - part.bytes, 0)
        parts = {
            phase.name.lower(): _lower(size, room)
            for phase, size in need.phases.items()
        }

        return replace(need, **parts, allocator=_lower(part, limit.range.high))

    low = part.range.low
    size = part.bytes
    high = part.range.high

    if runs:
        low -= max(pool.range.low - limit.bytes, 0) if is_measured else 0
    else:
        least = limit.bytes + 1
        high += max(least - pool.range.high, 0)

        if is_measured or is_own:  # a prediction may be too high
            low += max(least - pool.range.low, 0)
            size = max(size, size + least - pool.bytes, low)

    return replace(need, allocator=BoundedBytes.around(size, max(low, 0), high))


def _lower(size: BoundedBytes, most_bytes: int) -> BoundedBytes:
    """Return a size of at most ``most_bytes``, with the same upper bound."""
    return BoundedBytes.around(
        min(size.bytes, most_bytes),
        size.range.low,
        size.range.high,
    )
