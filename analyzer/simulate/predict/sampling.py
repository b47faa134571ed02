"""Sample schedules of a step, and choose the one to show.

The samples give the median peak and the range of the peaks. The allocator's chunks depend on chance:
a few schedules are played from the process's start, and others continue these histories. Of the
schedules near the median requested peak, the one nearest to the median allocated peak is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median_low
from typing import Final, NamedTuple

import numpy as np

from analyzer.model.contract.graph_note import Op
from analyzer.model.ranges import Range
from analyzer.model.tables import read_table
from analyzer.simulate.allocator import replay
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.limits import find_shared_limits
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.predict.executor.node_execution import NO_ASSUMPTIONS, Assumptions
from analyzer.simulate.predict.executor.threads import LockstepWorkers
from analyzer.simulate.predict.graph.edges import put_filters_last
from analyzer.simulate.predict.prepared_step import STEPS, Owner, Prepared, Schedule, play, prepare
from analyzer.simulate.predict.process_table import Played, measure_allocated, play_from_start
from analyzer.simulate.predict.uncertainty.decisions import Decision, decide, with_least_shapes
from analyzer.tracing.parse.run_folder import RunNote
from analyzer.tracing.xla.buffer_plan import BufferPlan

NEAR: Final = 0.002
"""Largest distance of the shown schedule's peak from the median, as a share of the median."""

_MOST: Final = read_table("simulate/predict/schedules.toml", dict[str, int])
"""Numbers of schedules to play and to replay, which the file explains."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few."""

MOST_SCHEDULES: Final = 201
"""Most schedules to sample; odd, so that the median is one of them. 95 % of few are all of them."""

EQUAL_SCHEDULES: Final = 19
"""Equal peaks after which sampling stops. One more schedule differs with a chance below 1 in 20 (1
in the number of schedules plus 2, Laplace's rule of succession)."""

EQUAL_SHARE: Final = 0.002
"""Share of the peak by which equal peaks may differ; the stated range has this margin anyway."""

COVERAGE: Final = 0.95
"""Chance that one more schedule peaks inside the range. Rare schedules do not widen it; the sentences
about it name the extremes, and the sufficient limit covers them too."""


@dataclass(frozen=True)
class ScheduleSample:
    """Sampled schedules on one number of threads, by ascending peak."""

    threads: int
    schedules: tuple[Schedule, ...]

    @classmethod
    def of(cls, schedules: Sequence[Schedule], threads: int) -> ScheduleSample:
        """Return these schedules sorted by peak."""
        return cls(threads, tuple(sorted(schedules, key=lambda schedule: schedule.peak_bytes)))

    @cached_property
    def peaks_bytes(self) -> tuple[int, ...]:
        """The sorted peaks."""
        return tuple(schedule.peak_bytes for schedule in self.schedules)

    @property
    def middle(self) -> Schedule:
        """The median schedule."""
        return self.schedules[(len(self.schedules) - 1) // 2]

    @cached_property
    def ends(self) -> tuple[int, int]:
        """First and last index of the narrowest range of peaks with 95 % coverage.

        One more schedule is equally likely in each of the gaps between and around the sorted peaks.
        So the range takes 193 of 201 peaks, 60 of 61, and all of 41 or fewer. It contains the median; of
        equally narrow ranges it is the highest.
        """
        peaks, count = self.peaks_bytes, len(self.peaks_bytes)
        inside = min(math.ceil(COVERAGE * (count + 1)) + 1, count)
        firsts = range(count - inside, -1, -1)
        around = (one for one in firsts if one <= (count - 1) // 2 < one + inside)
        first = min(around, key=lambda first: peaks[first + inside - 1] - peaks[first])
        return first, first + inside - 1

    @property
    def range(self) -> Range:
        """Peaks of 95 % of the schedules."""
        first, last = self.ends
        return Range(self.peaks_bytes[first], self.peaks_bytes[last])

    def spread(self, count: int) -> list[Schedule]:
        """Return schedules evenly spread over the range, the median and the highest."""
        even = np.linspace(*self.ends, count).round().astype(int).tolist()
        last = len(self.schedules) - 1
        return [self.schedules[at] for at in sorted({*even, last // 2, last})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The sampled schedules of a step."""

    by_threads: tuple[ScheduleSample, ...]  # the first is the figure's number of threads
    # schedules to replay: some on the figure's threads, the median on each other number of threads
    candidates: tuple[Schedule, ...]
    decisions: tuple[Decision, ...]
    alternatives: Range | None  # peaks with other outcomes; None without any
    least_bytes: int | None  # peak if each data-dependent size is one element; None without any
    # peaks of orders that no draw takes: "gradients" of convolutions as in another version (card), all
    # ops in turn on "one" thread, expensive ops in "lockstep"
    orders_bytes: Mapping[str, int]
    prepared: Prepared

    @property
    def main(self) -> ScheduleSample:
        """The schedules on the figure's number of threads."""
        return self.by_threads[0]

    @property
    def middle(self) -> Schedule:
        """The median schedule on the figure's number of threads."""
        return self.main.middle

    @property
    def peak_bytes(self) -> int:
        """Highest requested bytes of the median schedule's last step, including resident bytes."""
        return self.middle.peak_bytes

    @property
    def range(self) -> Range:
        """The range of the main sample, other outcomes of decisions, and orders that no draw takes."""
        sizes = [*self.orders_bytes.values()]
        if self.least_bytes is not None:
            sizes.append(self.least_bytes)
        if self.alternatives is not None:
            sizes += [self.alternatives.low, self.alternatives.high]
        return self.main.range.including(self.peak_bytes, *sizes)


def predict(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int = 1,
    inter_op: Sequence[int] = (1,),
    count: int | None = None,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
    steps: int = STEPS,
    assumed: Assumptions = NO_ASSUMPTIONS,
    progress: Callable[[float], None] = lambda share: None,
) -> Prediction:
    """Sample schedules of one step on a device, op by op.

    ``threads`` are intra-op threads, which size oneDNN's scratchpads; ``inter_op`` are numbers of
    inter-op threads: the figure's first, then others to compare. ``count`` None chooses the number
    of schedules by the size of the graph, and stops early if all peaks are equal. ``compiled`` has
    the plans of XLA-compiled functions by the name of the calling op.
    """
    make = partial(
        prepare, owners=owners, threads=threads, device=device, compiled=compiled, steps=steps
    )
    prepared, decisions, alternatives = decide(make(ops), assumed)
    ops_least, least_bytes = with_least_shapes(ops), None
    if ops_least is not None:
        least_bytes = play(replace(make(ops_least), assumed=prepared.assumed)).peak_bytes
    numbers, orders_bytes = list(dict.fromkeys(inter_op)), {}
    if device.is_cheap:
        # On a card one thread launches all kernels. Only after a node that the executor waits for
        # a second thread runs; then the first number stands for all.
        numbers = numbers[:1] if any(prepared.timing.waits) else [1]
        if any("BackpropFilter" in op.type for op in prepared.wiring.ops):
            other = replace(prepared, wirings=tuple(map(put_filters_last, prepared.wirings)))
            orders_bytes["gradients"] = play(other, threads=numbers[0]).peak_bytes
    samples = _sample(prepared, numbers, count, progress)
    main, *others = (samples[n] for n in dict.fromkeys(numbers) if n in samples)
    if main.threads > 1 and len(main.schedules) > 1 and not device.is_cheap:
        # A busy machine may delay every thread but one, or let all begin together.
        one = samples[1].middle if 1 in samples else play(prepared)
        together = play(prepared, threads=main.threads, workers=LockstepWorkers)
        orders_bytes |= {"one": one.peak_bytes, "lockstep": together.peak_bytes}
    runs = len(main.middle.nodes) * prepared.steps
    replays = _limit("candidate", runs, _MOST["candidates"])
    return Prediction(
        by_threads=(main, *others),
        candidates=(*main.spread(replays), *(other.middle for other in others)),
        decisions=decisions,
        alternatives=alternatives,
        least_bytes=least_bytes,
        orders_bytes=orders_bytes,
        prepared=prepared,
    )


def _sample(
    prepared: Prepared,
    inter_op: Sequence[int],
    wanted: int | None,
    progress: Callable[[float], None],
) -> dict[int, ScheduleSample]:
    """Return number of threads -> sampled schedules."""
    main = inter_op[0]
    first = play(prepared, 0, threads=main)
    count = wanted or _limit("sample", len(first.nodes), MOST_SCHEDULES)
    enough = count if wanted else min(count, EQUAL_SCHEDULES)
    counts = dict.fromkeys(inter_op, _MOST["other_schedules"] if count > 1 else 0) | {main: count}
    done, total = 0, sum(counts.values())
    samples: dict[int, ScheduleSample] = {}
    for threads, most in counts.items():
        own = [first] if threads == main else []
        for seed in range(len(own), most):
            if threads == main and seed == enough:
                peaks = Range.spanning(schedule.peak_bytes for schedule in own)
                if peaks.width <= EQUAL_SHARE * peaks.high:
                    break
            progress((done + len(own)) / total)
            own.append(play(prepared, seed, threads=threads))
        if own:
            samples[threads] = ScheduleSample.of(own, threads)
        done += len(own)
    return samples


def limit_schedules(total_runs: int, runs: int, fewest: int, most: int) -> int:
    """Return an odd number of schedules of ``runs`` op runs, with about ``total_runs`` in all."""
    return min(max(total_runs // max(runs, 1), fewest), most) // 2 * 2 + 1


def _limit(kind: str, runs: int, most: int) -> int:
    return limit_schedules(_MOST[f"{kind}_runs"], runs, _MOST[f"fewest_{kind}s"], most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The schedule to show, and the chunks of all."""

    played: Played
    # number of threads -> sorted allocated peaks of replayed schedules, except rare ones above
    allocated_bytes: Mapping[int, tuple[int, ...]]
    extra_bytes: int  # bytes that the shown peak holds in addition to the graph's schedule
    limits: Range | None  # the limits under which some and all schedules run; None if not searched


class Layout(NamedTuple):
    """The chunks of a process that ends with a schedule: highest in the last step, and before it."""

    schedule: Schedule
    sequence: replay.Sequence
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
    """Replay schedules over the range and choose one to show; ``owners`` by index in the note."""
    main = prediction.main
    play = partial(play_from_start, note, prediction.prepared, owners)
    starts = {one: play(one.seed, one.threads) for one in _choose_starts(prediction)}
    in_turn = list(starts.values())
    # Each schedule continues a history: its own, or one in turn.
    pairs = [
        (schedule, starts.get(schedule, in_turn[number % len(in_turn)]))
        for number, schedule in enumerate(prediction.candidates)
    ]
    layouts: list[Layout] = []
    for number, (schedule, start) in enumerate(pairs):
        progress((0.5 if search else 1.0) * number / len(pairs))
        if len(schedule.steps) == 1:
            sequence, step = start.end_with(schedule)
        else:  # steps differ, because a counter decides a branch
            whole = start if schedule in starts else play(schedule.seed, schedule.threads)
            sequence, step = whole.sequence(), whole.steps[-1]
        layouts.append(Layout(schedule, sequence, *measure_allocated(sequence, step, options)))
    own = [layout for layout in layouts if layout.schedule.threads == main.threads]
    middle = _choose_shown(prediction, starts, own)
    limits = None
    if search and len(layouts) > 1:
        # The highest first: its results mostly cover the others.
        largest = sorted(own, key=lambda layout: -layout.peak_bytes)
        sequences = [layout.sequence for layout in largest]
        limits = find_shared_limits(sequences, options)
    shown = starts[middle]
    return Chosen(
        played=shown,
        allocated_bytes=_group_peaks(prediction, layouts),
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
    """Return candidates: the median, some near it, and others spread over the range.

    The report shows one of those near the median. A single one might have unusual chunks.
    """
    main, middle = prediction.main, prediction.middle
    runs = prediction.prepared.steps * len(middle.nodes)
    count = _limit("start", runs, _MOST["starts"])
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
    alike = [layout for layout in own if layout.schedule in starts]
    alike = [one for one in alike if abs(one.schedule.peak_bytes - prediction.peak_bytes) <= near]
    distances = [
        abs(one.peak_bytes - peak_bytes) + abs(one.before_bytes - before_bytes) for one in alike
    ]
    return alike[distances.index(min(distances))].schedule
