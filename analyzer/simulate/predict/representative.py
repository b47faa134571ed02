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
        bound_bytes: Allocated peaks of the bounds, and of schedules with unseen requests (on a card).
        beside_bytes: Bytes that the shown peak holds in addition to the graph's schedule.
        limits: The limits under which some and all schedules run; None if not searched.
    """

    played: Played
    allocated_bytes: Mapping[int, tuple[int, ...]]
    bound_bytes: tuple[int, ...]
    beside_bytes: int
    limits: Range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The chunks of a schedule.

    Attributes:
        sequences: Requests of the process; on a card also with tiny unseen requests among them. On a CPU
            with several threads the schedules differ by as much.
        peaks_bytes: For each sequence, highest bytes of chunks in the last step.
        before_bytes: Bytes of chunks before the last step.
    """

    sequences: tuple[Sequence, ...]
    peaks_bytes: tuple[int, ...]
    before_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Highest bytes of chunks in the last step, without unseen requests."""
        return self.peaks_bytes[0]

    @classmethod
    def of(
        cls, sequence: Sequence, step: Step, options: BfcOptions, engine: Engine, unseen: int | None
    ) -> Layout:
        """Replay a schedule.

        Args:
            sequence: Requests of the process.
            step: Its last step.
            options: The allocator.
            engine: The allocator implementation.
            unseen: Seed of unseen requests; None for none.
        """
        sequences = (sequence,) if unseen is None else (sequence, add_unseen(sequence, unseen))
        measured = [measure_allocated(each, step, options, engine=engine) for each in sequences]
        return cls(
            sequences=sequences,
            peaks_bytes=tuple(peak for peak, _ in measured),
            before_bytes=measured[0][1],
        )


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
        note: The run note.
        prediction: The schedules.
        owners: The step's variables by their index in the note.
        options: The allocator.
        search: Whether to search the memory limits under which some and all schedules run.
        progress: Called with the share done, 0 to 1.
    """
    report = progress or (lambda share: None)
    main = prediction.kinds[0].threads
    histories = choose_starts(note, prediction, owners)
    starts = {played.draw.seed: played for played in histories.values()}
    schedules = dict(prediction.candidates)
    schedules |= {(draw.seed, draw.threads): draw for draw in prediction.bounds}
    any_start = next(iter(starts.values()))
    layouts: dict[tuple[int, int], Layout] = {}
    for number, (at, draw) in enumerate(schedules.items()):
        report((0.5 if search else 1.0) * number / len(schedules))
        sequence, step = _history(note, prediction, owners, draw, histories.get(at, any_start))
        # If a search for the limit will use the compiled allocator, use it here too.
        engine = engine_for(sequence, SEARCHES + 1) if search else Engine.AUTO
        unseen = at[0] if prediction.prepared.device.is_cheap and at[1] == main else None
        layouts[at] = Layout.of(sequence, step, options, engine, unseen)
    own = {seed: layout for (seed, threads), layout in layouts.items() if threads == main}
    bounds = [layouts[draw.seed, draw.threads] for draw in prediction.bounds]
    shown = starts[_choose_shown(prediction, starts, own)]
    limits = None
    if search and len(layouts) > 1:
        limits = _search_limits([*own.values(), *bounds], options, report)
    return Chosen(
        played=shown,
        allocated_bytes=_allocated_by_threads(prediction, layouts),
        bound_bytes=(
            *(layout.peak_bytes for layout in bounds),
            *(peak for layout in own.values() for peak in layout.peaks_bytes[1:]),
        ),
        beside_bytes=_count_extra_bytes(prediction, shown),
        limits=limits,
    )


def _allocated_by_threads(
    prediction: Prediction, layouts: Mapping[tuple[int, int], Layout]
) -> dict[int, tuple[int, ...]]:
    main = prediction.kinds[0]
    rare = {(seed, main.threads) for seed in main.seeds[main.ends[1] + 1 :]}
    return {
        kind.threads: tuple(
            sorted(
                layout.peak_bytes
                for at, layout in layouts.items()
                if at[1] == kind.threads and at not in rare
            )
        )
        for kind in prediction.kinds
    }


def choose_starts(
    note: RunNote, prediction: Prediction, owners: Mapping[int, Owner]
) -> dict[tuple[int, int], Played]:
    """Return for each candidate the history from the process's start that it continues.

    A few candidates are played from the start and continue their own history; the others continue these
    in turn.
    """
    threads = prediction.kinds[0].threads
    runs = prediction.prepared.steps * prediction.runs
    starts = {
        seed: play_from_start(note, prediction.prepared, owners, seed, threads)
        for seed in _choose_seeds(prediction, limit_draws(START_RUNS, runs, FEWEST_STARTS, STARTS))
    }
    in_turn = list(starts.values())
    return {
        at: starts.get(at[0], in_turn[number % len(in_turn)])
        if at[1] == threads
        else in_turn[number % len(in_turn)]
        for number, at in enumerate(prediction.candidates)
    }


def _choose_seeds(prediction: Prediction, count: int) -> list[int]:
    """Return seeds of candidates: the median, half near the median, half over the range.

    One near the median is shown. Several of them keep unusual chunks of the median itself from
    being shown.
    """
    main = prediction.kinds[0]
    own = [seed for seed, threads in prediction.candidates if threads == main.threads]
    peak_bytes = dict(zip(main.seeds, main.draws_bytes, strict=True))
    nearest = sorted(own, key=lambda seed: abs(peak_bytes[seed] - prediction.peak_bytes))
    near = nearest[: count // 2]
    rest = [seed for seed in own if seed not in near]
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


def _choose_shown(
    prediction: Prediction, starts: Collection[int], own: Mapping[int, Layout]
) -> int:
    """Return the seed to show: near the median requested peak, nearest to the median chunks.

    Args:
        prediction: The schedules.
        starts: Seeds of schedules played from the process's start.
        own: Chunks by seed.
    """
    main, near = prediction.kinds[0], int(NEAR * prediction.peak_bytes)
    alike = [
        seed
        for seed, draw_bytes in zip(main.seeds, main.draws_bytes, strict=True)
        if seed in starts and abs(draw_bytes - prediction.peak_bytes) <= near
    ]
    peak_bytes = median_low([layout.peak_bytes for layout in own.values()])
    before_bytes = median_low([layout.before_bytes for layout in own.values()])
    return min(
        alike,
        key=lambda seed: (
            abs(own[seed].peak_bytes - peak_bytes) + abs(own[seed].before_bytes - before_bytes)
        ),
    )


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
    main = prediction.kinds[0]
    alone = main.draws_bytes[main.seeds.index(played.draw.seed)]
    return played.draw.peak_bytes + played.aside_bytes - alone
