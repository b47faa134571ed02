"""The range of a step on a simulated card: how its peaks and its least limit vary between runs.

The runs of the step in one process show how the order of parallel ops changes the peaks. Another
process also places its long-lived buffers in other chunks. Replays with delayed events show how much
that matters.

A real card may choose another of cuDNN's algorithms than the one with the shortest modelled time: the
range also has the peaks with the least and the most likely workspace of each convolution.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from analyzer.explain.analysis import (
    Analysis,
    count_live_bytes,
    count_live_bytes_without,
)
from analyzer.explain.pool_facts import own_options
from analyzer.model.contract.fields import Category, TwoSizes
from analyzer.model.contract.report_file import StatedRange
from analyzer.model.contract.run_note import STEP_WITH_ALL
from analyzer.model.recording.records import Peak, Recording
from analyzer.model.units import Range, signed_bytes
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import FLOOR_BYTES, from_recording, replay
from analyzer.simulate.allocator.replay import Sequence as Operations

_CHANCE = 0.02  # of a run outside the stated range

# Of the peak. In three processes each, requested peaks of twelve steps left the ranges of the runs in
# one process by up to 0.5 %, apart from other orders of ops.
_MARGIN = 0.01

# Margins of the allocated peak. In three processes each, 24 steps left the range with one margin in 5
# of 144 cases and with two in 3, because processes place long-lived buffers in other chunks.
_CHUNKS = 2

_REPLAYS = 16  # orders whose allocated peaks and least limits are compared
_DELAY = 3  # durations of an op by which it is late on average


def with_run_range(analysis: Analysis) -> Analysis:
    """Return the analysis, after ``add_pool``, with the range of a step on a simulated card.

    The least limit depends on where chunks lie, as the allocated peak does. Steps that move variables
    into new buffers can leave one in the middle of the pool: the gaps between addresses show that.
    """
    recording = analysis.recording
    if recording.error is not None or not (
        recording.repeats or recording.has_unknown_values
    ):
        return analysis

    orders = _sample_orders(recording)
    options = replace(own_options(recording, orders[0]).unlimited(), growth=False)
    figures = [_replay_order(analysis, order, options) for order in orders]
    (rounded_bytes, *_), unused, gaps = zip(*figures, strict=True)

    stated = _state_peaks(analysis, rounded_bytes, unused)
    limit_bytes = analysis.safe_limit_bytes
    if limit_bytes is not None:
        # Below the peak a replay does without workspaces; that of another process may need them.
        more_bytes = max(limit_bytes - analysis.peak.allocated_bytes, 0)
        wider_bytes = widen(Range.spanning(gaps), len(gaps)).high - gaps[0]
        stated = structs.replace(
            stated,
            limit_low_bytes=min(limit_bytes, stated.allocated_low_bytes or 0),
            limit_high_bytes=max(
                (stated.allocated_high_bytes or 0) + more_bytes,
                limit_bytes + wider_bytes,
            ),
        )

    return replace(analysis, recording=replace(recording, uncertainty=stated))


def _state_peaks(
    analysis: Analysis,
    rounded_bytes: int,
    unused: Sequence[int],
) -> StatedRange:
    """Return the ranges of the peaks: of the runs in the process, and of replays in other orders.

    Args:
        rounded_bytes: The peak of the rounded requests.
        unused: The bytes that chunks have beyond their requests in each order.
    """
    runs, with_all = _peaks_of_runs(analysis)
    requested = widen(
        Range.spanning(one.requested_bytes for one in runs),
        len(runs),
    )

    # Some delays are impossible, because ops wait for each other, and raise the requests. The chunks
    # that they leave unused are possible.
    seen = Range.spanning(one.allocated_bytes for one in runs)
    seen = seen.including(rounded_bytes + max(unused))
    allocated = widen(seen, len(runs) + len(unused) - 1)

    for one in (analysis.peak, *with_all):  # the most that unknown values can select
        requested = requested.including(one.requested_bytes)
        allocated = allocated.including(one.allocated_bytes)

    margin_bytes = max(FLOOR_BYTES, int(_MARGIN * analysis.peak.requested_bytes))
    below_bytes, above_bytes = find_workspace_spread(analysis)
    requested = requested.widened(
        margin_bytes + below_bytes,
        margin_bytes + above_bytes,
    )

    # No layout takes less than the rounded requests.
    least_bytes = rounded_bytes - max(analysis.peak.requested_bytes - requested.low, 0)
    most_bytes = allocated.high + _CHUNKS * margin_bytes + above_bytes

    spread = (
        "Another algorithm of cuDNN, as likely on a real card, changes the peak by "
        f"{signed_bytes(-below_bytes)} to {signed_bytes(above_bytes)}."
    )

    return StatedRange(
        limit_high_bytes=None,
        low_bytes=requested.low,
        high_bytes=requested.high,
        allocated_low_bytes=max(least_bytes, 0),
        allocated_high_bytes=most_bytes,
        because=(spread,) if below_bytes or above_bytes else (),
        unsized=0,
    )


def _peaks_of_runs(analysis: Analysis) -> tuple[list[Peak | TwoSizes], list[Peak]]:
    """Return the peaks of the runs of the step, and of the one that took unknown values for true."""
    recording = analysis.recording
    with_all = STEP_WITH_ALL if recording.has_unknown_values else None
    peaks = analysis.find_step_peaks()
    highest = [peaks.pop(with_all)] if with_all in peaks else []

    # A program's own first traced step follows others.
    later = list(peaks.values())[0 if recording.watch else 1 :]

    return [*(later or highest), *recording.repeats], highest


def find_workspace_spread(analysis: Analysis) -> tuple[int, int]:
    """Return by how many bytes other likely workspaces lower and raise the steady step's peak.

    A convolution's workspace is found by its size. Convolutions without one are left out.
    """
    run = analysis.recording.simulated_run
    if run is None:
        return 0, 0

    likely: dict[int, Range] = {}

    for chosen, least, most in run.workspaces:
        if chosen:
            known = likely.get(chosen, Range(least, most))
            likely[chosen] = known.including(least, most)

    rows = analysis.rows
    is_workspace = rows["requested_bytes"].isin(likely)
    is_workspace &= rows["category"] == Category.WORKSPACE
    rows = rows[is_workspace & analysis.in_step(rows)]

    if rows.empty:
        return 0, 0

    sizes = rows["requested_bytes"].to_numpy()
    born = rows["born"].to_numpy()
    dies = rows["dies"].to_numpy()
    bare = count_live_bytes_without(analysis, sizes, born, dies)
    low = high = int(bare.max())

    for start, end, size in zip(born, dies, sizes, strict=True):
        during = slice(start - analysis.first, end - analysis.first)
        beside_bytes = int(bare[during].max(initial=0))
        low = max(low, beside_bytes + likely[int(size)].low)
        high = max(high, beside_bytes + likely[int(size)].high)

    peak_bytes = int(count_live_bytes(analysis).max())

    return max(peak_bytes - low, 0), max(high - peak_bytes, 0)


def widen(seen: Range, runs: int) -> Range:
    """Return a range that a further run leaves with a chance of ``_CHANCE`` at most.

    One more of ``n + 1`` equally likely runs is the lowest or the highest with the chance
    ``2 / (n + 1)``. For evenly spread runs it then lies further out than a share ``c`` of the seen
    range with the chance ``(1 + c) ** -(n - 1)``; their product is ``_CHANCE``.
    """
    if runs < 2:
        return seen

    chance = 2 / ((runs + 1) * _CHANCE)
    ratio = chance ** (1 / (runs - 1))
    beyond = int(max(ratio - 1, 0) * seen.width)

    return seen.widened(beyond, beyond)


def _sample_orders(recording: Recording) -> list[Operations]:
    """Return the recorded sequence, and others in which events are late by random times.

    An event is late by an exponential time. Its mean is a few times the time since the event before it
    on its thread, which is about the duration of its op; waiting counts as a few mean durations. The
    order of each thread stays, and a free follows its allocation.
    """
    sequence = from_recording(recording)
    times = recording.events["time_ps"].to_numpy()[sequence.instant].astype(float)

    threads = recording.events["thread"].to_numpy()[sequence.instant]
    places = [np.flatnonzero(threads == thread) for thread in np.unique(threads)]
    passed = np.zeros(len(sequence))

    for own in places:
        passed[own] = np.diff(times[own], prepend=times[own[0]])

    delay = _DELAY * np.minimum(passed, _DELAY * passed.mean())
    generator = np.random.default_rng(0)
    orders = [sequence]

    for _ in range(_REPLAYS if len(places) > 1 else 0):
        late = times + delay * generator.exponential(size=len(sequence))
        orders.append(_sort_by(sequence, late, places))

    return orders


def _sort_by(
    sequence: Operations,
    times: np.ndarray,
    threads: Sequence[np.ndarray],
) -> Operations:
    """Return the sequence in the order of new times; each thread keeps its order."""
    for own in threads:
        times[own] = np.maximum.accumulate(times[own])

    is_birth = sequence.request > 0
    born = np.zeros(sequence.n_buffers)
    born[sequence.slot[is_birth]] = times[is_birth]
    times = np.where(is_birth, times, np.maximum(times, born[sequence.slot]))

    return sequence.take(np.argsort(times, kind="stable"))


def _replay_order(
    analysis: Analysis,
    sequence: Operations,
    options: BfcOptions,
) -> tuple[int, int, int]:
    """Return the peak of the rounded requests in the step, and the unused bytes.

    These are the bytes that chunks have beyond their requests, and those between all addresses.
    """
    result = replay(sequence, options)
    live = sequence.live_rounded_bytes()
    instants = sequence.instant
    in_step = (instants >= analysis.first) & (instants <= analysis.last)
    rounded_bytes = int(live[in_step].max(initial=0))
    allocated_bytes = int(result.in_use_bytes[in_step].max(initial=0))

    return (
        rounded_bytes,
        allocated_bytes - rounded_bytes,
        result.span_bytes - int(live.max()),
    )
