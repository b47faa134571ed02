"""The choice of the schedule to show, and the memory limits that the schedules need.

The allocator's chunks depend on chance. Of the schedules near the median requested peak, the one nearest
to the median allocated peak is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

import numpy as np

from analyzer.model.ranges import Range
from analyzer.model.recording.records import Step
from analyzer.simulate.allocator import BfcOptions, Engine, Sequence
from analyzer.simulate.allocator.minimum_limit import engine_for, shared_limits
from analyzer.simulate.predict.buffers.predicted_events import add_unseen, measure_allocated
from analyzer.simulate.predict.played_step import Draw
from analyzer.simulate.predict.prepared_step import Owner
from analyzer.simulate.predict.process_table import Played, play_from_start
from analyzer.simulate.predict.schedules import Prediction, limit_draws
from analyzer.tracing.parse.run_folder import RunNote

NEAR: Final = 0.002
"""Largest distance of the shown schedule's peak from the median, as a share of the median."""

STARTS: Final = 15
"""Most schedules that are played from the process's start. The first step decides which chunks
there are; the other schedules continue one of these histories, and one of these is shown."""

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
        played: The schedule, from the process's start.
        allocated_bytes: By number of threads, sorted allocated peaks of the replayed schedules; without
            rare schedules above the range.
        bound_bytes: Allocated peaks of the bound schedules, and (on a card) of schedules with unseen
            requests.
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
        draw: The schedule.
        sequences: Requests of the process; on a card also with tiny unseen requests among them. On a CPU
            with several threads the schedules differ by as much.
        peaks_bytes: For each sequence, highest bytes of chunks in the last step.
        before_bytes: Bytes of chunks before the last step.
    """

    draw: Draw
    sequences: tuple[Sequence, ...]
    peaks_bytes: tuple[int, ...]
    before_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Highest bytes of chunks in the last step, without unseen requests."""
        return self.peaks_bytes[0]


def choose(
    note: RunNote,
    prediction: Prediction,
    owners: Mapping[int, Owner],
    options: BfcOptions,
    *,
    search: bool,
    progress: Callable[[float], None] | None = None,
) -> Chosen:
    """Replay schedules spread over the range and choose the one to show.

    Args:
        owners: The step's variables by their index in the note.
        search: Whether to search the memory limits under which some and all schedules run.
        progress: Called with the share done, 0 to 1.
    """
    report = progress or (lambda share: None)
    main = prediction.main.threads
    starts = _play_starts(note, prediction, owners)
    pairs = _pair_with_starts(prediction, starts)
    layouts: list[Layout] = []
    for number, (draw, start) in enumerate(pairs):
        report((0.5 if search else 1.0) * number / len(pairs))
        history = _history(note, prediction, owners, draw, start)
        has_unseen = prediction.prepared.device.is_cheap and draw.threads == main
        layouts.append(_replay(draw, *history, options, search=search, has_unseen=has_unseen))
    own = [layout for layout in layouts if layout.draw.threads == main]
    bounds = [layout for layout in layouts if prediction.is_bound(layout.draw)]
    shown = starts[_choose_shown(prediction, starts, own)]
    limits = None
    if search and len(layouts) > 1:
        limits = _search_limits([*own, *bounds], options, report)
    return Chosen(
        played=shown,
        allocated_bytes=_group_peaks(prediction, layouts),
        bound_bytes=(
            *(layout.peak_bytes for layout in bounds),
            *(peak for layout in own for peak in layout.peaks_bytes[1:]),
        ),
        extra_bytes=_count_extra_bytes(prediction, shown),
        limits=limits,
    )


def _replay(
    draw: Draw,
    sequence: Sequence,
    step: Step,
    options: BfcOptions,
    *,
    search: bool,
    has_unseen: bool,
) -> Layout:
    """Replay a schedule in the allocator.

    Args:
        sequence: Requests of its process.
        step: Its last step.
        search: Whether a search for the limit follows, which uses the same allocator.
        has_unseen: Whether to replay it also with unseen requests.
    """
    # If the search will use the compiled allocator, use it here too.
    engine = engine_for(sequence, SEARCHES + 1) if search else Engine.AUTO
    sequences = (sequence, add_unseen(sequence, draw.seed)) if has_unseen else (sequence,)
    measured = [measure_allocated(each, step, options, engine=engine) for each in sequences]
    return Layout(
        draw=draw,
        sequences=sequences,
        peaks_bytes=tuple(peak for peak, _ in measured),
        before_bytes=measured[0][1],
    )


def _group_peaks(prediction: Prediction, layouts: Collection[Layout]) -> dict[int, tuple[int, ...]]:
    """Return number of threads -> sorted allocated peaks, without rare schedules."""
    main = prediction.main
    rare = {(seed, main.threads) for seed in main.seeds[main.ends[1] + 1 :]}
    peaks: dict[int, list[int]] = {each.threads: [] for each in prediction.by_threads}
    for layout in layouts:
        draw = layout.draw
        if draw.threads in peaks and (draw.seed, draw.threads) not in rare:
            peaks[draw.threads].append(layout.peak_bytes)
    return {threads: tuple(sorted(own)) for threads, own in peaks.items()}


def _play_starts(
    note: RunNote, prediction: Prediction, owners: Mapping[int, Owner]
) -> dict[int, Played]:
    """Play a few candidates from the process's start; return them by seed."""
    threads = prediction.main.threads
    count = limit_draws(
        START_RUNS, prediction.prepared.steps * prediction.runs, FEWEST_STARTS, STARTS
    )
    return {
        seed: play_from_start(note, prediction.prepared, owners, seed, threads)
        for seed in _choose_seeds(prediction, count)
    }


def _pair_with_starts(
    prediction: Prediction, starts: Mapping[int, Played]
) -> list[tuple[Draw, Played]]:
    """Return each schedule to replay with the history that it continues.

    Candidates played from the start continue their own history; the others continue these in turn. A
    bound schedule that is no candidate continues the history of the first candidate.
    """
    in_turn = list(starts.values())
    pairs = []
    for number, draw in enumerate(prediction.candidates):
        start = in_turn[number % len(in_turn)]
        if draw.threads == prediction.main.threads:
            start = starts.get(draw.seed, start)
        pairs.append((draw, start))
    candidates = {(draw.seed, draw.threads) for draw in prediction.candidates}
    pairs += [
        (draw, pairs[0][1])
        for draw in prediction.bound_schedules
        if (draw.seed, draw.threads) not in candidates
    ]
    return pairs


def _choose_seeds(prediction: Prediction, count: int) -> list[int]:
    """Return seeds of candidates: the median, half near the median, half over the range.

    One near the median is shown. Several of them keep unusual chunks of the median itself from
    being shown.
    """
    main = prediction.main
    own = [draw for draw in prediction.candidates if draw.threads == main.threads]
    nearest = sorted(own, key=lambda draw: abs(draw.peak_bytes - prediction.peak_bytes))
    near = [draw.seed for draw in nearest[: count // 2]]
    rest = [draw.seed for draw in own if draw.seed not in near]
    even = np.linspace(0, len(rest) - 1, min(count - len(near), len(rest))).round().astype(int)
    return list(dict.fromkeys([main.seeds[main.middle], *near, *(rest[at] for at in even)]))


def _history(
    note: RunNote,
    prediction: Prediction,
    owners: Mapping[int, Owner],
    draw: Draw,
    start: Played,
) -> tuple[Sequence, Step]:
    """Return the requests of a process that ends with a schedule, and its last step.

    If steps differ (a counter decides a branch), the schedule is played from the start.
    """
    if len(draw.steps) == 1:
        return start.end_with(draw)
    whole = start
    if (draw.seed, draw.threads) != (start.draw.seed, start.draw.threads):
        whole = play_from_start(note, prediction.prepared, owners, draw.seed, draw.threads)
    return whole.sequence(), whole.steps[-1]


def _choose_shown(prediction: Prediction, starts: Collection[int], own: Collection[Layout]) -> int:
    """Return the seed to show: near the median requested peak, nearest to the median chunks.

    Args:
        starts: Seeds of schedules played from the process's start.
        own: Chunks of the schedules on the figure's threads.
    """
    near = int(NEAR * prediction.peak_bytes)
    peak_bytes = median_low([layout.peak_bytes for layout in own])
    before_bytes = median_low([layout.before_bytes for layout in own])
    alike = [
        layout
        for layout in own
        if layout.draw.seed in starts
        and abs(layout.draw.peak_bytes - prediction.peak_bytes) <= near
    ]
    return min(
        alike,
        key=lambda layout: (
            abs(layout.peak_bytes - peak_bytes) + abs(layout.before_bytes - before_bytes)
        ),
    ).draw.seed


def _search_limits(
    layouts: Collection[Layout], options: BfcOptions, report: Callable[[float], None]
) -> Range:
    """Return the limits under which some and all schedules run."""
    # The highest first: its results mostly cover the others.
    largest = sorted(layouts, key=lambda layout: -layout.peak_bytes)
    sequences = [layout.sequences[0] for layout in largest]
    sequences += [sequence for layout in largest for sequence in layout.sequences[1:]]
    return shared_limits(sequences, options, progress=lambda share: report(0.5 + 0.5 * share))


def _count_extra_bytes(prediction: Prediction, played: Played) -> int:
    """Return by how many bytes a schedule's peak is higher if played from the process's start."""
    main = prediction.main
    alone = main.draws_bytes[main.seeds.index(played.draw.seed)]
    return played.draw.peak_bytes + played.aside_bytes - alone
