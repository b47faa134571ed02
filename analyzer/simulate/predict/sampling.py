"""Sample schedules of a step: the median peak, the range of the peaks, and schedules to replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from analyzer.model.contract.graph_note import Op
from analyzer.model.ranges import Range
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.predict.executor.node_execution import NO_ASSUMPTIONS, Assumptions
from analyzer.simulate.predict.executor.threads import OVERLAPPED
from analyzer.simulate.predict.prepared_step import STEPS, Owner, Prepared, Schedule, play, prepare
from analyzer.simulate.predict.uncertainty.decisions import (
    Decision,
    decide,
    with_least_shapes,
)
from analyzer.tracing.xla.buffer_plan import BufferPlan

MOST_SCHEDULES: Final = 61  # most schedules to sample; odd, so that the median is one of them
FEWEST_SCHEDULES: Final = 21  # fewest schedules to sample, for large graphs

EQUAL_SCHEDULES: Final = 19
"""Equal peaks after which sampling stops. One more schedule differs with a chance below 1 in 20 (1
in the number of schedules plus 2, Laplace's rule of succession)."""

EQUAL_SHARE: Final = 0.002
"""Share of the peak by which equal peaks may differ; the stated range has this margin anyway."""

OTHER_SCHEDULES: Final = 5
"""Schedules to sample for another number of threads; only the middle peak counts."""

CANDIDATES: Final = 39
"""Schedules to replay in the allocator. One more lies between the lowest and the highest allocated peak
with a chance of 95 % (38 of 40 gaps)."""

FEWEST_CANDIDATES: Final = 9  # fewest schedules to replay, for large graphs
CANDIDATE_RUNS: Final = 360_000  # op runs in all replayed histories; limits their number
RUNS: Final = 240_000  # op runs in all sampled schedules; limits their number

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
        So the range takes 60 of 61 peaks, and all of 41 or fewer. It contains the median; of
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

    # sampled schedules by number of threads; the first is the figure's
    by_threads: tuple[ScheduleSample, ...]
    # the median one-thread schedule and the fully overlapped one; empty if the figure is for one
    # thread or a card. A busy machine runs ops in an order between the two.
    bound_schedules: tuple[Schedule, ...]
    # schedules to replay in the allocator: some on the figure's threads, and the median on each
    # other number of threads
    candidates: tuple[Schedule, ...]
    decisions: tuple[Decision, ...]
    alternatives: Range | None  # peaks with other outcomes; None without any
    least_bytes: int | None  # peak if each data-dependent size is one element; None without any
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
    def schedule_range(self) -> Range:
        """Peaks of the schedules on the figure's threads, and of the bound schedules."""
        bounds_bytes = (schedule.peak_bytes for schedule in self.bound_schedules)
        return self.main.range.including(self.peak_bytes, *bounds_bytes)

    @property
    def range(self) -> Range:
        """The schedule range, widened by other outcomes of decisions."""
        sizes = [self.peak_bytes if self.least_bytes is None else self.least_bytes]
        if self.alternatives is not None:
            sizes += [self.alternatives.low, self.alternatives.high]
        return self.schedule_range.including(*sizes)


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

    Args:
        threads: Intra-op threads; they size oneDNN's scratchpads.
        inter_op: Numbers of inter-op threads: the figure's first, then others to compare.
        count: Schedules on the figure's threads. None chooses by the size of the graph, and stops
            early if all peaks are equal.
        compiled: Memory plans of XLA-compiled functions, by the name of the calling op.
    """
    make = partial(
        prepare, owners=owners, threads=threads, device=device, compiled=compiled, steps=steps
    )
    prepared, decisions, alternatives = decide(make(ops), assumed)
    ops_least, least_bytes = with_least_shapes(ops), None
    if ops_least is not None:
        least_bytes = play(replace(make(ops_least), assumed=prepared.assumed)).peak_bytes
    numbers = prepared.select_threads(inter_op)
    samples = _sample(prepared, numbers, count, progress)
    main, *others = (samples[n] for n in dict.fromkeys(numbers) if n in samples)
    runs = len(main.middle.nodes) * prepared.steps
    replays = limit_schedules(CANDIDATE_RUNS, runs, FEWEST_CANDIDATES, CANDIDATES)
    bounds = (samples[1].middle, samples[OVERLAPPED].middle) if OVERLAPPED in samples else ()
    return Prediction(
        by_threads=(main, *others),
        bound_schedules=bounds,
        candidates=(*main.spread(replays), *(other.middle for other in others)),
        decisions=decisions,
        alternatives=alternatives,
        least_bytes=least_bytes,
        prepared=prepared,
    )


def _sample(
    prepared: Prepared,
    inter_op: Sequence[int],
    wanted: int | None,
    progress: Callable[[float], None],
) -> dict[int, ScheduleSample]:
    """Return number of threads -> sampled schedules, ``OVERLAPPED`` among them."""
    main = inter_op[0]
    first = play(prepared, 0, threads=main)
    count = wanted or limit_schedules(RUNS, len(first.nodes), FEWEST_SCHEDULES, MOST_SCHEDULES)
    enough = count if wanted else min(count, EQUAL_SCHEDULES)
    counts = dict.fromkeys(inter_op, OTHER_SCHEDULES if count > 1 else 0) | {main: count}
    if count > 1 and main > 1 and not prepared.device.is_cheap:
        counts |= {1: OTHER_SCHEDULES, OVERLAPPED: 1}
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
