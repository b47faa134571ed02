"""The prediction: sampled schedules of the executor, and the middle one as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.graph_note import Op
from analyzer.model.ranges import Range
from analyzer.model.recording.records import Step
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.predict.buffers.draw_table import find_unmodelled, make_allocations
from analyzer.simulate.predict.executor.data_decisions import Assumptions
from analyzer.simulate.predict.executor.threads import OVERLAPPED
from analyzer.simulate.predict.played_step import Draw, play
from analyzer.simulate.predict.prepared_step import STEPS, Owner, Prepared, prepare
from analyzer.simulate.predict.uncertainty.branch_alternatives import (
    Decision,
    decide,
    with_least_shapes,
)
from analyzer.tracing.xla.buffer_plan import BufferPlan

DRAWS: Final = 61
"""Most schedules to sample; odd, so that the median is one of them."""

FEWEST_DRAWS: Final = 21
"""Fewest schedules to sample, for large graphs."""

EQUAL_DRAWS: Final = 19
"""Equal peaks after which sampling stops. One more schedule differs with a chance below 1 in 20 (1
in the number of schedules plus 2, Laplace's rule of succession)."""

EQUAL_SHARE: Final = 0.002
"""Share of the peak by which equal peaks may differ; the stated range has this margin anyway."""

OTHER_DRAWS: Final = 5
"""Schedules to sample for another number of threads; only the middle peak counts."""

CANDIDATES: Final = 39
"""Schedules to replay in the allocator. One more lies between the lowest and the highest allocated peak
with a chance of 95 % (38 of 40 gaps)."""

FEWEST_CANDIDATES: Final = 9
"""Fewest schedules to replay, for large graphs."""

CANDIDATE_RUNS: Final = 360_000
"""Op runs in all replayed histories; limits their number."""

RUNS: Final = 240_000
"""Op runs in all sampled schedules; limits their number."""

COVERAGE: Final = 0.95
"""Chance that one more schedule peaks inside the range. Rare schedules do not widen it; the sentences
about it name the extremes, and the sufficient limit covers them too."""


def find_narrowest_range(peaks_bytes: Sequence[int]) -> tuple[int, int]:
    """Return first and last index of the narrowest range of sorted peaks with 95 % coverage.

    One more schedule is equally likely in each of the gaps between and around the sorted peaks. So the
    range takes 60 of 61 peaks, and all of 41 or fewer. It contains the median; of equally narrow ranges
    it is the highest.
    """
    count = len(peaks_bytes)
    inside = min(math.ceil(COVERAGE * (count + 1)) + 1, count)
    middle = (count - 1) // 2
    firsts = [first for first in range(count - inside, -1, -1) if first <= middle < first + inside]
    first = min(firsts, key=lambda first: peaks_bytes[first + inside - 1] - peaks_bytes[first])
    return first, first + inside - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Sampled schedules on one number of threads.

    Attributes:
        threads: Inter-op threads.
        seeds: Seeds of the schedules, by ascending peak.
        draws_bytes: Their requested peaks.
    """

    threads: int
    seeds: tuple[int, ...]
    draws_bytes: tuple[int, ...]

    @classmethod
    def of(cls, draws: Sequence[Draw], threads: int) -> Schedules:
        """Return these schedules sorted by peak."""
        ordered = sorted(draws, key=lambda draw: draw.peak_bytes)
        return cls(
            threads=threads,
            seeds=tuple(draw.seed for draw in ordered),
            draws_bytes=tuple(draw.peak_bytes for draw in ordered),
        )

    @property
    def middle(self) -> int:
        """Index of the median schedule."""
        return (len(self.seeds) - 1) // 2

    @property
    def middle_bytes(self) -> int:
        """The median peak."""
        return self.draws_bytes[self.middle]

    @property
    def ends(self) -> tuple[int, int]:
        """First and last index of the range."""
        return find_narrowest_range(self.draws_bytes)

    @property
    def range(self) -> Range:
        """Peaks of 95 % of the schedules."""
        first, last = self.ends
        return Range(self.draws_bytes[first], self.draws_bytes[last])

    def spread(self, count: int) -> list[int]:
        """Return indices evenly spread over the range, the median's and that of the highest peak."""
        even = np.linspace(*self.ends, count).round().astype(int)
        return sorted({*even.tolist(), self.middle, len(self.seeds) - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The allocations of a step.

    Attributes:
        allocations: The median schedule, with the columns of ``ALLOCATIONS``.
        instants: Number of allocations and frees in it.
        steps: Its steps; several if a counter decides a branch.
        resident_bytes: Requested bytes alive before the last step.
        peak_bytes: Highest requested bytes of the last step, including resident bytes.
        peak_instant: Instant of that peak.
        kinds: Sampled schedules by number of threads; the first is the figure's.
        bounds: The median one-thread schedule and the fully overlapped one; empty if the figure is for
            one thread or a card. A busy machine runs ops in an order between the two.
        unmodelled: Op types without a rule: ``op_type``, ``count``, ``bytes``.
        decisions: Branches and loops that data decide, and the assumed outcomes.
        alternatives: Peaks with other outcomes; None without any.
        least_bytes: Peak if each data-dependent size is one element; None without any.
        stranded: Ops that never run; none in a graph that can run.
        prepared: The graph and its kernels.
        middle: The median schedule.
        ends: The schedules with the lowest and the highest peak of the range.
        candidates: Schedules to replay in the allocator, by seed and threads: some of the first kind,
            the median of the others.
        runs: Number of op runs in a step; loops run an op several times.
    """

    allocations: pd.DataFrame
    instants: int
    steps: tuple[Step, ...]
    resident_bytes: int
    peak_bytes: int
    peak_instant: int
    kinds: tuple[Schedules, ...]
    bounds: tuple[Draw, ...]
    unmodelled: pd.DataFrame
    decisions: tuple[Decision, ...]
    alternatives: Range | None
    least_bytes: int | None
    stranded: tuple[str, ...]
    prepared: Prepared
    middle: Draw
    ends: tuple[Draw, Draw]
    candidates: Mapping[tuple[int, int], Draw]
    runs: int

    @property
    def schedule_range(self) -> Range:
        """Peaks of the first kind's schedules and of the bounds."""
        return self.kinds[0].range.including(self.peak_bytes, *(b.peak_bytes for b in self.bounds))

    @property
    def range(self) -> Range:
        """The schedule range, widened by other outcomes of decisions."""
        other, least = self.alternatives, self.least_bytes
        sizes = [] if other is None else [other.low, other.high]
        return self.schedule_range.including(
            *sizes, *([] if least is None else [least]), self.peak_bytes
        )


# Long: the arguments and the fields of the result take most of the lines.
def predict(
    ops: Sequence[Op],
    owners: Sequence[Owner],
    *,
    threads: int = 1,
    inter_op: Sequence[int] = (1,),
    draws: int | None = None,
    device: KernelDevice = CPU,
    compiled: Mapping[str, BufferPlan] | None = None,
    steps: int = STEPS,
    assumed: Assumptions | None = None,
    progress: Callable[[float], None] | None = None,
) -> Prediction:
    """Predict the allocations of one step on a device, op by op.

    Args:
        ops: The graph that the executor runs.
        owners: The variables that it uses.
        threads: Intra-op threads of the device; they size oneDNN's scratchpads.
        inter_op: Numbers of inter-op threads: the figure's first, then others to compare.
        draws: Number of schedules of the first kind. None chooses by the size of the graph, and stops
            early if all peaks are equal.
        device: The device.
        compiled: Memory plans of XLA-compiled functions, by the name of the calling op.
        steps: Number of steps from the start.
        assumed: The user's assumptions about branches and loops that data decide.
        progress: Called with the share done, 0 to 1.
    """
    decided = decide(
        prepare(ops, owners, threads=threads, device=device, compiled=compiled, steps=steps),
        assumed,
    )
    prepared = decided.prepared
    least_bytes = _find_least_bytes(prepared, ops, owners, threads, compiled)
    inter_op = prepared.select_threads(inter_op)
    main = inter_op[0]
    first = play(prepared, 0, threads=main)
    runs = len(first.order)
    count = draws or limit_draws(RUNS, runs, FEWEST_DRAWS, DRAWS)
    has_bounds = count > 1 and main > 1 and not device.is_cheap
    counts = dict.fromkeys(inter_op, OTHER_DRAWS if count > 1 else 0)
    counts |= {main: count} | ({1: OTHER_DRAWS, OVERLAPPED: 1} if has_bounds else {})
    enough = count if draws else min(count, EQUAL_DRAWS)
    sampled = _sample(prepared, first, counts, enough, progress)
    kinds = {number: Schedules.of(made, number) for number, made in sampled.items() if made}
    by_seed = {(draw.seed, draw.threads): draw for made in sampled.values() for draw in made}
    shown = kinds[main]
    middle = by_seed[shown.seeds[shown.middle], main]
    bounds = [
        by_seed[kinds[n].seeds[kinds[n].middle], n] for n in ((1, OVERLAPPED) if has_bounds else ())
    ]
    ends = sorted(
        [*(by_seed[shown.seeds[k], main] for k in shown.ends), *bounds], key=lambda d: d.peak_bytes
    )
    compared = [kinds[number] for number in inter_op if number in kinds]
    return Prediction(
        allocations=make_allocations(prepared, middle),
        instants=middle.instants,
        steps=tuple(
            Step(index=index, number=index, first=first, last=last)
            for index, (first, last) in enumerate(middle.steps)
        ),
        resident_bytes=middle.resident_bytes,
        peak_bytes=middle.peak_bytes,
        peak_instant=middle.peak_instant,
        kinds=tuple(compared),
        bounds=tuple(bounds),
        unmodelled=find_unmodelled(prepared),
        decisions=decided.decisions,
        alternatives=decided.peaks,
        least_bytes=least_bytes,
        stranded=tuple(prepared.wiring.ops[node].name for node in middle.stranded),
        prepared=prepared,
        middle=middle,
        ends=(ends[0], ends[-1]),
        candidates=_choose_candidates(compared, by_seed, len(middle.order) * prepared.steps),
        runs=len(middle.order),
    )


def _sample(
    prepared: Prepared,
    first: Draw,
    counts: Mapping[int, int],
    enough: int,
    progress: Callable[[float], None] | None,
) -> dict[int, list[Draw]]:
    """Return sampled schedules by number of threads.

    Args:
        prepared: The graph.
        first: A schedule of the first kind.
        counts: Number of schedules to sample by number of threads.
        enough: Equal peaks of the first kind after which its sampling stops.
        progress: Called with the share done, 0 to 1.
    """
    total = sum(counts.values())
    sampled = {first.threads: [first]}
    for threads, count in counts.items():
        draws = sampled.setdefault(threads, [])
        for seed in range(len(draws), count):
            if threads == first.threads and seed == enough and _are_equal(draws):
                break
            if progress is not None:
                progress(sum(map(len, sampled.values())) / total)
            draws.append(play(prepared, seed, threads=threads))
    return sampled


def _are_equal(draws: Sequence[Draw]) -> bool:
    peaks = Range.spanning(draw.peak_bytes for draw in draws)
    return peaks.width <= EQUAL_SHARE * peaks.high


def _choose_candidates(
    kinds: Sequence[Schedules], by_seed: Mapping[tuple[int, int], Draw], runs: int
) -> dict[tuple[int, int], Draw]:
    """Return the schedules to replay; ``runs`` is the number of op runs in the history of one."""
    shown, *others = kinds
    count = limit_draws(CANDIDATE_RUNS, runs, FEWEST_CANDIDATES, CANDIDATES)
    chosen = [(shown.seeds[at], shown.threads) for at in shown.spread(count)]
    chosen += [(kind.seeds[kind.middle], kind.threads) for kind in others]
    return {at: by_seed[at] for at in chosen}


def _find_least_bytes(
    prepared: Prepared,
    ops: Sequence[Op],
    owners: Sequence[Owner],
    threads: int,
    compiled: Mapping[str, BufferPlan] | None,
) -> int | None:
    """Return the peak if each data-dependent size is one element; None without any."""
    ops_least = with_least_shapes(ops)
    if ops_least is None:
        return None
    least = prepare(
        ops_least,
        owners,
        threads=threads,
        device=prepared.device,
        compiled=compiled,
        steps=prepared.steps,
    )
    return play(replace(least, assumed=prepared.assumed), 0).peak_bytes


def limit_draws(total_runs: int, runs: int, fewest: int, most: int) -> int:
    """Return an odd number of schedules, with about ``total_runs`` op runs in all of them.

    Args:
        total_runs: Op runs in all schedules.
        runs: Op runs in one schedule.
        fewest: Fewest schedules.
        most: Most schedules.
    """
    return min(max(total_runs // max(runs, 1), fewest), most) // 2 * 2 + 1
