"""The prediction: several schedules that the executor could take, and the middle one as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.contract.graph_note import Op
from analyzer.model.recording.records import Step
from analyzer.simulate.kernels.kernel_device import CPU, KernelDevice
from analyzer.simulate.predict.buffers.draw_table import allocations_of, unmodelled_of
from analyzer.simulate.predict.executor.data_decisions import Assumptions
from analyzer.simulate.predict.played_step import STEPS, Draw, Owner, Prepared, play, prepare
from analyzer.simulate.predict.uncertainty.branch_alternatives import (
    Decision,
    decide,
    with_least_shapes,
)
from analyzer.tracing.xla.buffer_plan import BufferPlan

DRAWS: Final = 61
"""Schedules drawn: an odd number, so that the median is one of them."""

FEWEST_DRAWS: Final = 21
"""The same where each draw is much work."""

EQUAL_DRAWS: Final = 19
"""Draws after which no more are made where all peak alike: that one more does not has then a chance of
less than 1 in 20 (1 in the draws and two, Laplace's rule of succession)."""

ALIKE: Final = 0.002
"""Share of the peak by which peaks that count as alike may differ: what the stated range has on each
side whatever the draws say."""

ASIDE: Final = 5
"""Draws with another number of threads than the one shown: for their middle peak alone."""

CANDIDATES: Final = 39
"""Draws whose chunks are worked out: between their lowest and their highest allocated peak one more lies
with a chance of 95 % (38 of the 40 gaps that 39 draws leave)."""

FEWEST_CANDIDATES: Final = 9
"""The same where each draw is much work."""

CANDIDATE_RUNS: Final = 360_000
"""Runs of ops in the histories that are laid out, between the fewest candidates and all."""

RUNS: Final = 240_000
"""Runs of ops that all draws together may take, between the fewest draws and all."""


STATED: Final = 0.95
"""Chance that one more schedule peaks inside the stated range. A rare order does not widen it; the
sentences beside it name the extremes, and the limit that is said to suffice holds for them too."""


def stated(draws_bytes: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last of sorted draws that end the stated range: the narrowest such range.

    One more draw is as likely in any of the gaps between the sorted ones, of which there are one more
    than draws: between two of them it lies with a chance of the gaps that they enclose. So 95 % take
    60 of 61 draws, and of 41 or fewer all. The range holds the middle draw; of equally narrow ones it
    is the highest.
    """
    count = len(draws_bytes)
    held = min(math.ceil(STATED * (count + 1)) + 1, count)
    middle = (count - 1) // 2
    firsts = [first for first in range(count - held, -1, -1) if first <= middle < first + held]
    first = min(firsts, key=lambda first: draws_bytes[first + held - 1] - draws_bytes[first])
    return first, first + held - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Draws with one number of threads.

    Attributes:
        threads: Threads that run ops side by side (inter-op).
        seeds: The draws, from the lowest peak to the highest.
        draws_bytes: Their peaks, requested bytes.
    """

    threads: int
    seeds: tuple[int, ...]
    draws_bytes: tuple[int, ...]

    @property
    def middle_bytes(self) -> int:
        """The middle peak."""
        return self.draws_bytes[self.middle]

    @property
    def middle(self) -> int:
        """Which draw is the middle one, among the sorted ones."""
        return (len(self.seeds) - 1) // 2

    def spread(self, count: int) -> list[int]:
        """Return draws evenly spread over the stated range, the middle one and the last of all."""
        even = np.linspace(*self.ends, count).round().astype(int)
        return sorted({*even.tolist(), self.middle, len(self.seeds) - 1})

    @property
    def ends(self) -> tuple[int, int]:
        """Which draws end the stated range, among the sorted ones."""
        return stated(self.draws_bytes)

    @property
    def low_bytes(self) -> int:
        """The peak that begins the stated range."""
        return self.draws_bytes[self.ends[0]]

    @property
    def high_bytes(self) -> int:
        """The peak that ends it."""
        return self.draws_bytes[self.ends[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a step will ask the allocator for.

    Attributes:
        allocations: The middle draw, with the columns of ``ALLOCATIONS``.
        instants: Number of allocations and frees in it.
        steps: Its steps; more than one where a counter decides a branch.
        resident_bytes: Requested bytes alive before the last step.
        peak_bytes: Highest requested bytes of the last step, what is resident included.
        peak_instant: Where.
        kinds: The draws by number of threads. ``allocations`` and the range are of the first kind; of
            the others a few tell what the step would peak at on so many threads.
        unmodelled: Op types without a rule: ``op_type``, ``count``, ``bytes``.
        decisions: Branches and loops that the data decide, and what is taken for them.
        other_low_bytes, other_high_bytes: Least and highest peak with what else could be taken; None
            without any.
        least_bytes: Requested peak with one element wherever the most that the data may give was taken;
            None where nothing was.
        stranded: Ops that a run never comes to: none, but in a graph that cannot run.
        prepared: The graph and its kernels.
        seed: The middle draw, which runs on the threads of the first kind.
        middle: The middle draw as it was played.
        ends: Those that end the stated range as they were played, the low one first.
        candidates: By seed and threads, the draws whose chunks are to be worked out, as they were
            played: some over the range of the first kind, the middle ones of the others.
        runs: How often an op runs in a step: more often than there are ops where there are loops.
    """

    allocations: pd.DataFrame
    instants: int
    steps: tuple[Step, ...]
    resident_bytes: int
    peak_bytes: int
    peak_instant: int
    kinds: tuple[Schedules, ...]
    unmodelled: pd.DataFrame
    decisions: tuple[Decision, ...]
    other_low_bytes: int | None
    other_high_bytes: int | None
    least_bytes: int | None
    stranded: tuple[str, ...]
    prepared: Prepared
    seed: int
    middle: Draw
    ends: tuple[Draw, Draw]
    candidates: Mapping[tuple[int, int], Draw]
    runs: int

    @property
    def low_bytes(self) -> int:
        """Lowest peak of the range: of the draws on the threads shown, and of what the data decide."""
        low = self.kinds[0].low_bytes
        return low if self.other_low_bytes is None else min(low, self.other_low_bytes)

    @property
    def high_bytes(self) -> int:
        """Highest peak of that range."""
        high = self.kinds[0].high_bytes
        return high if self.other_high_bytes is None else max(high, self.other_high_bytes)


# Long: what it is told and what it returns are most of it.
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
    told: Assumptions | None = None,
    progress: Callable[[float], None] | None = None,
) -> Prediction:
    """Predict the allocations of one step on a device, op by op.

    Args:
        ops: The graph that the executor runs.
        owners: The variables that it uses.
        threads: Intra-op threads of the device, which size oneDNN's scratchpads.
        inter_op: How many threads run ops side by side: the number that is shown and that the range is
            of, then others to compare it with. A card on which nothing is waited for runs all on one.
        draws: How many schedules of the first kind to draw; None chooses by the size of the graph, and
            fewer where all of them peak alike.
        device: The device that it runs on.
        compiled: Memory plans of the XLA-compiled functions, by the name of the op that calls one.
        steps: Steps to play from the start.
        told: What the user told of branches and loops that the data decide.
        progress: Called with the share done, 0 to 1.
    """
    known = prepare(ops, owners, threads=threads, device=device, compiled=compiled, steps=steps)
    decided = decide(known, told)
    prepared = decided.prepared
    least_bytes = _least_bytes(prepared, ops, owners, threads, compiled)
    inter_op = prepared.threads_that_matter(inter_op)
    first = play(prepared, 0, threads=inter_op[0])
    runs = len(first.order)
    count = draws or draws_within(RUNS, runs, FEWEST_DRAWS, DRAWS)
    wanted = dict.fromkeys(inter_op, ASIDE if count > 1 else 0) | {inter_op[0]: count}
    enough = count if draws else min(count, EQUAL_DRAWS)
    played = _drawn(prepared, first, wanted, enough, progress)
    kinds = tuple(_schedules(drawn, number) for number, drawn in played.items() if drawn)
    main = {draw.seed: draw for draw in played[inter_op[0]]}
    middle = main[kinds[0].seeds[kinds[0].middle]]
    return Prediction(
        allocations=allocations_of(prepared, middle),
        instants=middle.instants,
        steps=_steps_of(middle),
        resident_bytes=middle.resident_bytes,
        peak_bytes=middle.peak_bytes,
        peak_instant=middle.peak_instant,
        kinds=kinds,
        unmodelled=unmodelled_of(prepared),
        decisions=decided.decisions,
        other_low_bytes=_least_of(decided.low_bytes, least_bytes),
        least_bytes=least_bytes,
        other_high_bytes=decided.high_bytes,
        stranded=tuple(prepared.wiring.ops[node].name for node in middle.stranded),
        prepared=prepared,
        seed=middle.seed,
        middle=middle,
        ends=(main[kinds[0].seeds[kinds[0].ends[0]]], main[kinds[0].seeds[kinds[0].ends[1]]]),
        candidates=_candidates(kinds, played, len(middle.order) * prepared.steps),
        runs=len(middle.order),
    )


def _drawn(
    prepared: Prepared,
    first: Draw,
    wanted: Mapping[int, int],
    enough: int,
    progress: Callable[[float], None] | None,
) -> dict[int, list[Draw]]:
    """Return the draws of each number of threads.

    Args:
        prepared: The graph.
        first: One of the draws, on the threads that are shown.
        wanted: How many draws of each number of threads.
        enough: How many on the threads that are shown suffice where all of them peak alike.
        progress: Called with the share done, 0 to 1.
    """
    total = sum(wanted.values())
    played = {first.threads: [first]}
    for threads, count in wanted.items():
        drawn = played.setdefault(threads, [])
        for seed in range(len(drawn), count):
            if threads == first.threads and seed == enough and _are_alike(drawn):
                break
            if progress is not None:
                progress(sum(map(len, played.values())) / total)
            drawn.append(play(prepared, seed, threads=threads))
    return played


def _candidates(
    kinds: Sequence[Schedules], played: Mapping[int, Sequence[Draw]], each: int
) -> dict[tuple[int, int], Draw]:
    """Return the draws whose chunks are to be worked out.

    Args:
        kinds: The draws by number of threads, the one shown first.
        played: The same as they were played.
        each: Runs of ops in the history of one.
    """
    count = draws_within(CANDIDATE_RUNS, each, FEWEST_CANDIDATES, CANDIDATES)
    wanted = [(kinds[0].seeds[at], kinds[0].threads) for at in kinds[0].spread(count)]
    wanted += [(kind.seeds[kind.middle], kind.threads) for kind in kinds[1:]]
    by_seed = {(draw.seed, draw.threads): draw for drawn in played.values() for draw in drawn}
    return {at: by_seed[at] for at in wanted}


def _are_alike(drawn: Sequence[Draw]) -> bool:
    peaks_bytes = [draw.peak_bytes for draw in drawn]
    return max(peaks_bytes) - min(peaks_bytes) <= ALIKE * max(peaks_bytes)


def _steps_of(draw: Draw) -> tuple[Step, ...]:
    return tuple(
        Step(index=index, number=index, first=first, last=last)
        for index, (first, last) in enumerate(draw.steps)
    )


def _least_of(*sizes_bytes: int | None) -> int | None:
    """Return the least of the sizes that are known."""
    return min((size for size in sizes_bytes if size is not None), default=None)


def _least_bytes(
    prepared: Prepared,
    ops: Sequence[Op],
    owners: Sequence[Owner],
    threads: int,
    compiled: Mapping[str, BufferPlan] | None,
) -> int | None:
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


def _schedules(played: Sequence[Draw], threads: int) -> Schedules:
    ordered = sorted(played, key=lambda draw: draw.peak_bytes)
    return Schedules(
        threads=threads,
        seeds=tuple(draw.seed for draw in ordered),
        draws_bytes=tuple(draw.peak_bytes for draw in ordered),
    )


def draws_within(runs: int, each: int, fewest: int, most: int) -> int:
    """Return an odd number of draws of ``each`` runs of ops that stays near ``runs`` in all.

    Args:
        runs: Runs of ops in all draws together, about.
        each: Runs of ops in one draw.
        fewest: Draws at least.
        most: Draws at most.
    """
    return min(max(runs // max(each, 1), fewest), most) // 2 * 2 + 1
