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
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.predict.buffers.draw_table import find_unmodelled
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
        """Return indices evenly spread over the range, plus those of the median and the highest peak."""
        even = np.linspace(*self.ends, count).round().astype(int)
        return sorted({*even.tolist(), self.middle, len(self.seeds) - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The sampled schedules of a step.

    Attributes:
        by_threads: Sampled schedules by number of threads; the first is the figure's.
        middle: The median schedule on the figure's threads.
        bound_schedules: The median one-thread schedule and the fully overlapped one; empty if the figure
            is for one thread or a card. A busy machine runs ops in an order between the two.
        ends: The schedules with the lowest and the highest peak of the range.
        candidates: Schedules to replay in the allocator: some on the figure's threads, and the median
            on each other number of threads.
        decisions: Branches and loops that data decide, and the assumed outcomes.
        alternatives: Peaks with other outcomes; None without any.
        least_bytes: Peak if each data-dependent size is one element; None without any.
        prepared: The graph and its kernels.
    """

    by_threads: tuple[Schedules, ...]
    middle: Draw
    bound_schedules: tuple[Draw, ...]
    ends: tuple[Draw, Draw]
    candidates: tuple[Draw, ...]
    decisions: tuple[Decision, ...]
    alternatives: Range | None
    least_bytes: int | None
    prepared: Prepared

    @property
    def main(self) -> Schedules:
        """The schedules on the figure's number of threads."""
        return self.by_threads[0]

    @property
    def peak_bytes(self) -> int:
        """Highest requested bytes of the median schedule's last step, including resident bytes."""
        return self.middle.peak_bytes

    @property
    def runs(self) -> int:
        """Number of op runs in a step; loops run an op several times."""
        return len(self.middle.order)

    def is_bound(self, draw: Draw) -> bool:
        """Return whether a schedule is a bound schedule."""
        return any(
            (draw.seed, draw.threads) == (bound.seed, bound.threads)
            for bound in self.bound_schedules
        )

    @property
    def unmodelled(self) -> pd.DataFrame:
        """Op types without a rule: ``op_type``, ``count``, ``bytes``."""
        return find_unmodelled(self.prepared)

    @property
    def stranded(self) -> tuple[str, ...]:
        """Ops that never run; none in a graph that can run."""
        return tuple(self.prepared.wiring.ops[node].name for node in self.middle.stranded)

    @property
    def schedule_range(self) -> Range:
        """Peaks of the schedules on the figure's threads, and of the bound schedules."""
        bounds_bytes = (draw.peak_bytes for draw in self.bound_schedules)
        return self.main.range.including(self.peak_bytes, *bounds_bytes)

    @property
    def range(self) -> Range:
        """The schedule range, widened by other outcomes of decisions."""
        sizes = [self.peak_bytes]
        if self.alternatives is not None:
            sizes += [self.alternatives.low, self.alternatives.high]
        if self.least_bytes is not None:
            sizes.append(self.least_bytes)
        return self.schedule_range.including(*sizes)


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
    """Sample schedules of one step on a device, op by op.

    Args:
        ops: The graph that the executor runs.
        threads: Intra-op threads of the device; they size oneDNN's scratchpads.
        inter_op: Numbers of inter-op threads: the figure's first, then others to compare.
        draws: Number of schedules on the figure's threads. None chooses by the size of the graph, and
            stops early if all peaks are equal.
        compiled: Memory plans of XLA-compiled functions, by the name of the calling op.
        steps: Number of steps from the start.
        assumed: The user's assumptions about branches and loops that data decide.
        progress: Called with the share done, 0 to 1.
    """
    prepared = prepare(ops, owners, threads=threads, device=device, compiled=compiled, steps=steps)
    decided = decide(prepared, assumed)
    prepared = decided.prepared
    least_bytes = _find_least_bytes(prepared, ops, owners, threads, compiled)
    sampled = _sample(prepared, prepared.select_threads(inter_op), draws, progress)
    main = sampled.by_threads[0]
    middle = sampled.find_median(main)
    bounds = [sampled.find_median(bound) for bound in sampled.bounds]
    ends = [sampled.draws[main.seeds[at], main.threads] for at in main.ends]
    ends = sorted([*ends, *bounds], key=lambda draw: draw.peak_bytes)
    return Prediction(
        by_threads=sampled.by_threads,
        middle=middle,
        bound_schedules=tuple(bounds),
        ends=(ends[0], ends[-1]),
        candidates=_choose_candidates(sampled, len(middle.order) * prepared.steps),
        decisions=decided.decisions,
        alternatives=decided.peaks,
        least_bytes=least_bytes,
        prepared=prepared,
    )


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Sampled schedules: all by seed and threads, sorted by threads, and those of the bounds."""

    draws: Mapping[tuple[int, int], Draw]
    by_threads: tuple[Schedules, ...]
    bounds: tuple[Schedules, ...]

    def find_median(self, schedules: Schedules) -> Draw:
        """Return the median of schedules on one number of threads."""
        return self.draws[schedules.seeds[schedules.middle], schedules.threads]


def _sample(
    prepared: Prepared,
    inter_op: Sequence[int],
    wanted: int | None,
    progress: Callable[[float], None] | None,
) -> _Sampled:
    """Sample schedules on each number of threads, and the bounds; arguments as for ``predict``."""
    report = progress or (lambda share: None)
    main = inter_op[0]
    first = play(prepared, 0, threads=main)
    count = wanted or limit_draws(RUNS, len(first.order), FEWEST_DRAWS, DRAWS)
    enough = count if wanted else min(count, EQUAL_DRAWS)
    counts = _count_draws(inter_op, count, is_on_card=prepared.device.is_cheap)
    draws = {(0, main): first}
    by_threads: dict[int, Schedules] = {}
    for threads, most in counts.items():
        own = [first] if threads == main else []
        for seed in range(len(own), most):
            if threads == main and seed == enough and _are_equal(own):
                break
            report(len(draws) / sum(counts.values()))
            own.append(play(prepared, seed, threads=threads))
            draws[seed, threads] = own[-1]
        if own:
            by_threads[threads] = Schedules.of(own, threads)
    return _Sampled(
        draws,
        tuple(by_threads[threads] for threads in dict.fromkeys(inter_op) if threads in by_threads),
        (by_threads[1], by_threads[OVERLAPPED]) if OVERLAPPED in counts else (),
    )


def _count_draws(inter_op: Sequence[int], count: int, *, is_on_card: bool) -> dict[int, int]:
    """Return number of threads -> schedules to sample on them; ``count`` on the first number."""
    main = inter_op[0]
    counts = dict.fromkeys(inter_op, OTHER_DRAWS if count > 1 else 0) | {main: count}
    if count > 1 and main > 1 and not is_on_card:
        counts |= {1: OTHER_DRAWS, OVERLAPPED: 1}
    return counts


def _are_equal(draws: Sequence[Draw]) -> bool:
    peaks = Range.spanning(draw.peak_bytes for draw in draws)
    return peaks.width <= EQUAL_SHARE * peaks.high


def _choose_candidates(sampled: _Sampled, runs: int) -> tuple[Draw, ...]:
    """Return the schedules to replay; ``runs`` is the number of op runs in the history of one."""
    main, *others = sampled.by_threads
    count = limit_draws(CANDIDATE_RUNS, runs, FEWEST_CANDIDATES, CANDIDATES)
    spread = (sampled.draws[main.seeds[at], main.threads] for at in main.spread(count))
    return (*spread, *map(sampled.find_median, others))


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
