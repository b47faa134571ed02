"""The choice of the schedule to show, and the memory limits that the schedules need.

The allocator's chunks depend on chance. A few schedules are played from the process's start; all others
continue one of these histories. Of the schedules near the median requested peak, the one nearest to the
median allocated peak is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import numpy as np

from analyzer.model.ranges import Range
from analyzer.simulate.allocator import BfcOptions, Engine, Sequence
from analyzer.simulate.allocator.limit_search import engine_for, find_shared_limits
from analyzer.simulate.predict.buffers.buffer_table import measure_allocated
from analyzer.simulate.predict.prepared_step import Owner
from analyzer.simulate.predict.process_table import Played, play_from_start
from analyzer.simulate.predict.sampling import Prediction, limit_schedules
from analyzer.simulate.predict.schedule import Schedule
from analyzer.tracing.parse.run_folder import RunNote

NEAR: Final = 0.002
"""Largest distance of the shown schedule's peak from the median, as a share of the median."""

STARTS: Final = 15
"""Most schedules that are played from the process's start. The first step decides which chunks there
are. With 3 instead of 15, two of 42 allocated peaks on one thread leave their range."""

FEWEST_STARTS: Final = 3
"""Fewest schedules that are played from the start, for large graphs."""

START_RUNS: Final = 120_000
"""Op runs in all histories from the start; limits their number."""

SEARCHES: Final = 6
"""Cost of the limit search over all schedules in units of one search; they share most results."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few
schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The schedule to show, and the chunks of all.

    Attributes:
        allocated_bytes: By number of threads, sorted allocated peaks of the replayed schedules; without
            rare schedules above the range.
        bound_bytes: Allocated peaks of the bound schedules.
        extra_bytes: Bytes that the shown peak holds in addition to the graph's schedule.
        limits: The limits under which some and all schedules run; None if not searched.
    """

    played: Played
    allocated_bytes: Mapping[int, tuple[int, ...]]
    bound_bytes: tuple[int, ...]
    extra_bytes: int
    limits: Range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The chunks of a schedule.

    Attributes:
        sequence: Requests of a process that ends with the schedule.
        peak_bytes: Highest bytes of chunks in the last step.
        before_bytes: Bytes of chunks before the last step.
    """

    schedule: Schedule
    sequence: Sequence
    peak_bytes: int
    before_bytes: int


def choose(
    note: RunNote,
    prediction: Prediction,
    owners: Mapping[int, Owner],
    options: BfcOptions,
    *,
    search: bool,
    progress: Callable[[float], None],
) -> Chosen:
    """Replay schedules spread over the range and choose the one to show.

    Args:
        owners: The step's variables by their index in the note.
        search: Whether to search the memory limits under which some and all schedules run.
        progress: Called with the share done, 0 to 1.
    """
    main = prediction.main

    def play(seed: int, threads: int = main.threads) -> Played:
        return play_from_start(note, prediction.prepared, owners, seed, threads)

    starts = {seed: play(seed) for seed in _choose_seeds(prediction)}
    pairs = _pair_with_starts(prediction, starts)
    layouts: list[Layout] = []
    for number, (schedule, start) in enumerate(pairs):
        progress((0.5 if search else 1.0) * number / len(pairs))
        if len(schedule.steps) == 1:
            sequence, step = start.end_with(schedule)
        else:  # steps differ, because a counter decides a branch
            is_own = (schedule.seed, schedule.threads) == (start.schedule.seed, main.threads)
            whole = start if is_own else play(schedule.seed, schedule.threads)
            sequence, step = whole.sequence(), whole.steps[-1]
        # If the search will use the compiled allocator, use it here too.
        engine = engine_for(sequence, SEARCHES + 1) if search else Engine.AUTO
        peak, before = measure_allocated(sequence, step, options, engine=engine)
        layouts.append(
            Layout(schedule=schedule, sequence=sequence, peak_bytes=peak, before_bytes=before)
        )
    own = [layout for layout in layouts if layout.schedule.threads == main.threads]
    bounds = [layout for layout in layouts if prediction.is_bound(layout.schedule)]
    shown = starts[_choose_shown(prediction, starts, own)]
    limits = None
    if search and len(layouts) > 1:
        # The highest first: its results mostly cover the others.
        largest = sorted([*own, *bounds], key=lambda layout: -layout.peak_bytes)
        sequences = [layout.sequence for layout in largest]
        limits = find_shared_limits(sequences, options, lambda share: progress(0.5 + 0.5 * share))
    alone = main.peaks_bytes[main.seeds.index(shown.schedule.seed)]
    return Chosen(
        played=shown,
        allocated_bytes=_group_peaks(prediction, layouts),
        bound_bytes=tuple(layout.peak_bytes for layout in bounds),
        extra_bytes=shown.schedule.peak_bytes + shown.aside_bytes - alone,
        limits=limits,
    )


def _group_peaks(prediction: Prediction, layouts: Collection[Layout]) -> dict[int, tuple[int, ...]]:
    """Return number of threads -> sorted allocated peaks, without rare schedules."""
    main = prediction.main
    rare = {(seed, main.threads) for seed in main.seeds[main.ends[1] + 1 :]}
    peaks: dict[int, list[int]] = {each.threads: [] for each in prediction.by_threads}
    for layout in layouts:
        schedule = layout.schedule
        if schedule.threads in peaks and (schedule.seed, schedule.threads) not in rare:
            peaks[schedule.threads].append(layout.peak_bytes)
    return {threads: tuple(sorted(own)) for threads, own in peaks.items()}


def _pair_with_starts(
    prediction: Prediction, starts: Mapping[int, Played]
) -> list[tuple[Schedule, Played]]:
    """Return each schedule to replay with the history that it continues.

    Candidates played from the start continue their own history; the others continue these in turn. A
    bound schedule that is no candidate continues the history of the first candidate.
    """
    in_turn = list(starts.values())
    pairs = []
    for number, schedule in enumerate(prediction.candidates):
        start = in_turn[number % len(in_turn)]
        if schedule.threads == prediction.main.threads:
            start = starts.get(schedule.seed, start)
        pairs.append((schedule, start))
    candidates = {(schedule.seed, schedule.threads) for schedule in prediction.candidates}
    pairs += [
        (schedule, pairs[0][1])
        for schedule in prediction.bound_schedules
        if (schedule.seed, schedule.threads) not in candidates
    ]
    return pairs


def _choose_seeds(prediction: Prediction) -> list[int]:
    """Return seeds of candidates: the median, half near the median, half over the range.

    One near the median is shown. Several of them keep unusual chunks of the median itself from
    being shown.
    """
    main = prediction.main
    runs = prediction.prepared.steps * prediction.runs
    count = limit_schedules(START_RUNS, runs, FEWEST_STARTS, STARTS)
    own = [schedule for schedule in prediction.candidates if schedule.threads == main.threads]
    nearest = sorted(own, key=lambda schedule: abs(schedule.peak_bytes - prediction.peak_bytes))
    near = [schedule.seed for schedule in nearest[: count // 2]]
    rest = [schedule.seed for schedule in own if schedule.seed not in near]
    even = np.linspace(0, len(rest) - 1, min(count - len(near), len(rest))).round().astype(int)
    return list(dict.fromkeys([main.seeds[main.middle], *near, *(rest[at] for at in even)]))


def _choose_shown(prediction: Prediction, starts: Collection[int], own: Collection[Layout]) -> int:
    """Return the seed to show: near the median requested peak, nearest to the median chunks."""
    near = int(NEAR * prediction.peak_bytes)
    peak_bytes = median_low([layout.peak_bytes for layout in own])
    before_bytes = median_low([layout.before_bytes for layout in own])
    alike = [
        layout
        for layout in own
        if layout.schedule.seed in starts
        and abs(layout.schedule.peak_bytes - prediction.peak_bytes) <= near
    ]
    return min(
        alike,
        key=lambda layout: (
            abs(layout.peak_bytes - peak_bytes) + abs(layout.before_bytes - before_bytes)
        ),
    ).schedule.seed
