"""The choice of the schedule to show, and the memory limits that the schedules need.

The allocator's chunks depend on chance. A few schedules are played from the process's start; all others
continue one of these histories. Of the schedules near the median requested peak, the one nearest to the
median allocated peak is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Final, NamedTuple

import numpy as np

from analyzer.model.ranges import Range
from analyzer.simulate.allocator import BfcOptions, Sequence, prepare_searches
from analyzer.simulate.allocator.minimum_limit import find_shared_limits
from analyzer.simulate.predict.prepared_step import Owner, Schedule
from analyzer.simulate.predict.process_table import Played, measure_allocated, play_from_start
from analyzer.simulate.predict.sampling import Prediction, limit_schedules
from analyzer.tracing.parse.run_folder import RunNote

NEAR: Final = 0.002
"""Largest distance of the shown schedule's peak from the median, as a share of the median."""

STARTS: Final = 15
"""Most schedules that are played from the process's start. The first step decides which chunks there
are. With 3 instead of 15, two of 42 allocated peaks on one thread leave their range."""

FEWEST_STARTS: Final = 3  # fewest schedules that are played from the start, for large graphs
START_RUNS: Final = 120_000  # op runs in all histories from the start; limits their number

SEARCHES: Final = 6
"""Cost of the limit search over all schedules in units of one search; they share most results."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few
schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The schedule to show, and the chunks of all."""

    played: Played
    # by number of threads, sorted allocated peaks of the replayed schedules; without rare schedules
    # above the range
    allocated_bytes: Mapping[int, tuple[int, ...]]
    bound_bytes: tuple[int, ...]  # allocated peaks of the bound schedules
    extra_bytes: int  # bytes that the shown peak holds in addition to the graph's schedule
    limits: Range | None  # the limits under which some and all schedules run; None if not searched


class Layout(NamedTuple):
    """The chunks of a process that ends with a schedule: highest in the last step, and before it."""

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

    ``owners`` have their index in the note. ``search`` is whether to search the memory limits.
    """
    main, bounds = prediction.main, prediction.bound_schedules

    play = partial(play_from_start, note, prediction.prepared, owners)
    starts = {one: play(one.seed, one.threads) for one in _choose_starts(prediction)}
    in_turn = list(starts.values())
    # Each schedule continues a history: its own, or one in turn; the bounds continue the first.
    pairs = [
        (schedule, starts.get(schedule, in_turn[number % len(in_turn)]))
        for number, schedule in enumerate(prediction.candidates)
    ]
    pairs += [(bound, pairs[0][1]) for bound in bounds if bound not in prediction.candidates]
    layouts: list[Layout] = []
    for number, (schedule, start) in enumerate(pairs):
        progress((0.5 if search else 1.0) * number / len(pairs))
        if len(schedule.steps) == 1:
            sequence, step = start.end_with(schedule)
        else:  # steps differ, because a counter decides a branch
            whole = start if schedule in starts else play(schedule.seed, schedule.threads)
            sequence, step = whole.sequence(), whole.steps[-1]
        if search:  # if the search will use the compiled allocator, use it here too
            prepare_searches(sequence, SEARCHES + 1)
        layouts.append(Layout(schedule, sequence, *measure_allocated(sequence, step, options)))
    own = [layout for layout in layouts if layout.schedule.threads == main.threads]
    bound_layouts = [layout for layout in layouts if layout.schedule in bounds]
    middle = _choose_shown(prediction, starts, own)
    limits = None
    if search and len(layouts) > 1:
        # The highest first: its results mostly cover the others.
        largest = sorted([*own, *bound_layouts], key=lambda layout: -layout.peak_bytes)
        sequences = [layout.sequence for layout in largest]
        limits = find_shared_limits(sequences, options, lambda share: progress(0.5 + 0.5 * share))
    shown = starts[middle]
    return Chosen(
        played=shown,
        allocated_bytes=_group_peaks(prediction, layouts),
        bound_bytes=tuple(layout.peak_bytes for layout in bound_layouts),
        extra_bytes=shown.schedule.peak_bytes + shown.aside_bytes - middle.peak_bytes,
        limits=limits,
    )


def _group_peaks(prediction: Prediction, layouts: Collection[Layout]) -> dict[int, tuple[int, ...]]:
    """Return number of threads -> sorted allocated peaks, without rare schedules."""
    main = prediction.main
    rare = main.schedules[main.ends[1] + 1 :]
    return {
        each.threads: tuple(
            sorted(
                layout.peak_bytes
                for layout in layouts
                if layout.schedule.threads == each.threads and layout.schedule not in rare
            )
        )
        for each in prediction.by_threads
    }


def _choose_starts(prediction: Prediction) -> list[Schedule]:
    """Return candidates: the median, half near the median, half over the range.

    One near the median is shown. Several of them keep unusual chunks of the median itself from
    being shown.
    """
    main, middle = prediction.main, prediction.middle
    runs = prediction.prepared.steps * len(middle.nodes)
    count = limit_schedules(START_RUNS, runs, FEWEST_STARTS, STARTS)
    own = [schedule for schedule in prediction.candidates if schedule.threads == main.threads]
    nearest = sorted(own, key=lambda schedule: abs(schedule.peak_bytes - middle.peak_bytes))
    near = nearest[: count // 2]
    rest = [schedule for schedule in own if schedule not in near]
    even = np.linspace(0, len(rest) - 1, min(count - len(near), len(rest))).round().astype(int)
    return list(dict.fromkeys([middle, *near, *(rest[at] for at in even)]))


def _choose_shown(
    prediction: Prediction, starts: Collection[Schedule], own: Collection[Layout]
) -> Schedule:
    """Return the schedule to show: near the median requested peak, nearest to the median chunks."""
    near = int(NEAR * prediction.peak_bytes)
    peak_bytes = median_low([layout.peak_bytes for layout in own])
    before_bytes = median_low([layout.before_bytes for layout in own])

    def measure_distance(layout: Layout) -> int:
        return abs(layout.peak_bytes - peak_bytes) + abs(layout.before_bytes - before_bytes)

    alike = [layout for layout in own if layout.schedule in starts]
    alike = [one for one in alike if abs(one.schedule.peak_bytes - prediction.peak_bytes) <= near]
    return min(alike, key=measure_distance).schedule
