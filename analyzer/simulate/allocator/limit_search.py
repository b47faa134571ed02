"""Try memory limits for one sequence, with as few runs of the allocator as possible.

One run answers for a range of limits (``BfcAllocator.equal_limits``), and with growth all limits
share the first part of their runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_options import (
    FIRST_REGION_BYTES,
    UNLIMITED_BYTES,
    BfcOptions,
)
from analyzer.simulate.allocator.replay import Engine, choose, replay
from analyzer.simulate.allocator.sequence import Sequence

MOST_PROBES: Final = 256
"""Most limits tried in each direction, for short sequences."""

FEWEST_PROBES: Final = 16
"""Fewest, however long the sequence is."""

PLAIN_BUDGET, COMPILED_BUDGET = 150_000, 5_000_000
"""Operations of all limits in one direction, if each needed a whole run; most do not."""

ISLAND: Final = 0.01
"""Narrowest range of successful limits that counts below a failing limit, as a share of the limit.

The position of such a range differs from order to order, so a real run misses it.
"""

EXPECTED_RUNS: Final = 12
"""Expected number of runs of a search, to choose the engine. Parts of runs count in proportion."""

WHOLE_RUNS: Final = 48
"""The same without growth: the size of the pool is the limit, so runs have nothing in common."""

FINENESS: Final = 10_000
"""Steps in a peak when several sequences are searched."""


def engine_for(sequence: Sequence, searches: int = 1, *, growth: bool = True) -> Engine:
    """Return the fastest engine for a number of limit searches."""
    runs = EXPECTED_RUNS if growth else WHOLE_RUNS
    return choose(Engine.AUTO, len(sequence) * runs * searches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """Distances between the limits tried.

    Attributes:
        near_bytes: Distance next to the limit searched for; it increases further away.
        shift_bytes: Distance of the first limit from the end of the range.
        adjacent: Number of first limits that lie in adjacent ranges of equal limits, so that none
            is skipped.
    """

    count: int
    near_bytes: int
    shift_bytes: int = 0
    adjacent: int = 0


class LimitSearch:
    """The limits tried so far for one sequence, all multiples of the step.

    Args:
        options: The allocator's settings; their limit is ignored.

    Attributes:
        tried: Whether the sequence succeeded, for each limit tried.
    """

    def __init__(
        self, sequence: Sequence, options: BfcOptions, step_bytes: int, engine: Engine
    ) -> None:
        self.sequence = sequence
        self.options = options
        self.step_bytes = step_bytes
        self.engine = engine
        self.tried: dict[int, bool] = {}
        self._results: list[tuple[Range, bool]] = []
        self._shared: tuple[BfcAllocator, int] | None = None
        needed = sequence.without(sequence.spare) if sequence.spare.any() else sequence
        peak_bytes = int(needed.live_rounded_bytes().max(initial=0))
        self.bound = self.up(max(peak_bytes, GRANULE_BYTES))
        """A lower bound of all limits: the peak of the rounded requests."""
        self.top = self._find_top()
        """A limit that fits; with growth all larger limits fit also."""

    def fits(self, limit_bytes: int) -> bool:
        """Return whether the sequence succeeds under a limit."""
        if limit_bytes not in self.tried:
            known = (fits for limits, fits in self._results if limit_bytes in limits)
            fits = next(known, None)
            if fits is None:
                done, limits, _ = self.run(limit_bytes)
                fits = done == len(self.sequence)
                self._results.append((limits, fits))
            self.tried[limit_bytes] = fits
        return self.tried[limit_bytes]

    def run(self, limit_bytes: int) -> tuple[int, Range, list[int]]:
        """Run the sequence under a limit.

        Returns:
            The number of operations that succeed, all limits with the same run, and the optional
            buffers without memory.
        """
        allocator, common = self._start(limit_bytes)
        done, skipped = feed_sparing(allocator, self.sequence, common)
        return done, allocator.equal_limits, skipped

    def _start(self, limit_bytes: int) -> tuple[BfcAllocator, int]:
        """Return an allocator under a limit, and the number of operations that it has done."""
        if self._shared is not None:
            started, common = self._shared
            return started.under(limit_bytes), common
        options = replace(self.options, memory_limit_bytes=limit_bytes)
        is_compiled = self.engine is Engine.COMPILED
        return BfcAllocator(options, self.sequence.n_buffers, is_compiled=is_compiled), 0

    def up(self, size_bytes: int) -> int:
        """Return the size rounded up to a multiple of the step."""
        return -(-size_bytes // self.step_bytes) * self.step_bytes

    def _find_top(self) -> int:
        limit = self.bound
        # An optional buffer that fits takes memory, and a later one may then find none.
        if self.sequence.spare.any():
            limit = max(limit, int(self.sequence.live_rounded_bytes().max()))
        if self.options.growth:
            limit = max(limit, self._share_runs())
        elif not self.options.fragmentation_fraction:
            # From the low end of this range on, each run without growth equals the unlimited run.
            done, limits, _ = self.run(UNLIMITED_BYTES)
            if done == len(self.sequence):
                limit = max(limit, limits.low)
        return self.enough(self.up(limit))

    def _share_runs(self) -> int:
        """Run once the operations that all limits have in common; return the pool without a limit.

        A limit matters only when a region goes beyond it. Until then each run equals the unlimited
        one. A limit of at least the pool of an unlimited replay changes none of its regions.
        """
        unlimited = replay(self.sequence, self.options.unlimited(), engine=self.engine)
        if not self.options.fragmentation_fraction and self.bound >= FIRST_REGION_BYTES:
            common, pool_bytes = len(self.sequence), 0
            for extension in unlimited.extensions:
                pool_bytes += extension.size_bytes
                if pool_bytes > self.bound:
                    common = extension.owner
                    break
            started, _ = self._start(self.bound)
            started.feed(self.sequence.slot[:common], self.sequence.request[:common])
            self._shared = started, common
        return unlimited.peak_pool_bytes

    def find_above_failures(self, spacing: Spacing, floor: int) -> int:
        """Return the smallest limit from which on no limit tried fails, and at least ``floor``."""
        fits, at, count = self.top, self.top - spacing.shift_bytes, 0
        while fits > floor:
            at = max(self.up(at), floor)
            if not self.fits(at):
                return self.bisect(at, fits)
            fits, at = at, self._equal_limits(at).low - self.step_bytes
            count += 1
            if count > spacing.adjacent:
                at = min(at, fits - max(spacing.near_bytes, 3 * (fits - floor) // spacing.count))
        return floor

    def find_lowest_success(
        self, spacing: Spacing, most_bytes: int, *, island: float = ISLAND
    ) -> int:
        """Return the smallest limit found that succeeds, and at most ``most_bytes``.

        Args:
            island: Share of the limit; a narrower success below failing limits does not count.
        """
        fails, at = self.bound - self.step_bytes, self.up(self.bound + spacing.shift_bytes)
        step_bytes = max(spacing.near_bytes, (most_bytes - self.bound) // spacing.count)
        while at < most_bytes:
            if self.fits(at):
                lowest = self.bisect(fails, at)
                above = (lowest + int(island * lowest * part / 4) for part in range(1, 5))
                if all(self.fits(self.up(limit)) for limit in above):
                    return lowest
            else:
                fails = at
            at = self.up(max(at + step_bytes, self._equal_limits(at).high + 1))
        return most_bytes

    def _equal_limits(self, limit_bytes: int) -> Range:
        """Return the limits with the same run as a limit that was tried."""
        equal = (limits for limits, _ in self._results if limit_bytes in limits)
        return next(equal, Range.exactly(limit_bytes))

    def enough(self, limit: int) -> int:
        """Return a limit under which the sequence succeeds, at least the given one."""
        while not self.fits(limit):
            limit = self.up(limit + limit // 4)
            if limit > UNLIMITED_BYTES:
                raise InputError("The sequence fails under every limit.")
        return limit

    def bisect(self, fails: int, fits: int) -> int:
        """Return a limit between the two that fits, while one step less fails."""
        while fits - fails > self.step_bytes:
            middle = (fails + fits) // 2 // self.step_bytes * self.step_bytes
            if self.fits(middle):
                fits = middle
            else:
                fails = middle
        return fits


def count_probes(operations: int, engine: Engine) -> int:
    """Return how many limits to try for sequences with so many operations in all."""
    budget = COMPILED_BUDGET if engine is Engine.COMPILED else PLAIN_BUDGET
    return min(MOST_PROBES, max(FEWEST_PROBES, budget // max(operations, 1)))


def find_shared_limits(
    sequences: list[Sequence],
    options: BfcOptions,
    progress: Callable[[float], None] = lambda share: None,
    *,
    engine: Engine = Engine.AUTO,
) -> Range:
    """Return the limits below which none and above which all of several sequences succeed.

    Each search uses the bounds found so far, and tries limits slightly beside the limits of
    the search before, because similar orders fail and succeed at similar limits.

    Args:
        progress: Called with the share done, 0 to 1.
    """
    total = sum(map(len, sequences))
    engine = choose(engine, FEWEST_PROBES * total)
    count = count_probes(total, engine)
    least_bytes, safe_bytes = UNLIMITED_BYTES, 0
    for number, sequence in enumerate(sequences):
        progress(number / len(sequences))
        peak_bytes = int(sequence.live_rounded_bytes().max(initial=0))
        search = LimitSearch(sequence, options, round_up(peak_bytes // FINENESS), engine)
        near_bytes = search.bound // (8 * count)
        shift_bytes = near_bytes * (number + 1) // len(sequences)
        spacing = Spacing(count=count, near_bytes=near_bytes, shift_bytes=shift_bytes)
        safe_bytes = search.find_above_failures(spacing, search.up(max(safe_bytes, search.bound)))
        least_bytes = search.find_lowest_success(spacing, min(least_bytes, safe_bytes))
    return Range(least_bytes, safe_bytes)


def feed_sparing(
    allocator: BfcAllocator, sequence: Sequence, first: int = 0
) -> tuple[int, list[int]]:
    """Run a sequence and skip optional buffers (``Sequence.spare``) that find no memory.

    Args:
        first: Operation to begin with; the allocator has run those before it.

    Returns:
        The number of operations done from the start of the sequence, and the skipped buffers.
    """
    slot, request, end = sequence.slot, sequence.request, len(sequence)
    done = first
    skipped: list[int] = []
    frees: list[int] = []  # operations that free skipped buffers, as a heap
    freed_at: NDArray[np.int64] | None = None  # operation that frees each buffer
    while True:
        while frees and frees[0] < done:
            heappop(frees)
        stop = frees[0] if frees else end
        done += allocator.feed(slot[done:stop], request[done:stop])
        if done == end:
            return done, skipped
        if done < stop:
            buffer = int(slot[done])
            if not sequence.spare.size or not sequence.spare[buffer]:
                return done, skipped
            skipped.append(buffer)
            if freed_at is None:
                freed_at = np.full(sequence.n_buffers, -1)
                freed_at[slot[request == 0]] = np.flatnonzero(request == 0)
            if freed_at[buffer] > done:
                heappush(frees, int(freed_at[buffer]))
        done += 1
