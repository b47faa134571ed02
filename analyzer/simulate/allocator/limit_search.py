"""Try memory limits for one sequence, with as few runs of the allocator as possible.

One run answers for a range of limits (``BfcAllocator.equal_limits``), and with growth all limits
share the first part of their runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_options import (
    FIRST_REGION_BYTES,
    UNLIMITED_BYTES,
    BfcOptions,
)
from analyzer.simulate.allocator.replay import Engine, Replay, replay
from analyzer.simulate.allocator.sequence import Sequence
from analyzer.simulate.allocator.sequence_runner import feed_sparing

MOST_PROBES: Final = 256
"""Most limits in an even spacing, for short sequences."""

FEWEST_PROBES: Final = 24
"""Fewest limits in an even spacing, however long the sequence is."""

LONG_OPERATIONS: Final = 20_000
"""A sequence of this length or more gets ``BUDGET``."""

BUDGET: Final = 20_000_000
"""Operations of all evenly spaced limits, if each needed a whole run; most do not."""

SHORT_BUDGET: Final = 150_000
"""The same for a short sequence."""

ISLAND: Final = 0.01
"""Narrowest range of successful limits that counts below a failing limit, as a share of the limit.

The position of such a range differs from order to order, so a real run misses it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """Distances between the limits tried.

    Attributes:
        count: Approximate number of limits.
        near_bytes: Distance next to the limit searched for; it increases further away.
        shift_bytes: Distance of the first limit from the end of the range.
    """

    count: int
    near_bytes: int
    shift_bytes: int


class LimitSearch:
    """The limits tried so far for one sequence, all multiples of the step.

    Args:
        sequence: Requests and frees, in order.
        options: The allocator's settings; their limit is ignored.
        step_bytes: Limits are multiples of this.
        engine: How the allocator runs.

    Attributes:
        tried: Whether the sequence succeeded, for each limit tried.
        needed: The sequence without optional buffers.
    """

    def __init__(
        self, sequence: Sequence, options: BfcOptions, step_bytes: int, engine: Engine
    ) -> None:
        self.sequence = sequence
        self.options = options
        self.step_bytes = step_bytes
        self.engine = engine
        self.tried: dict[int, bool] = {}
        self.needed = sequence.without(sequence.spare) if sequence.spare.any() else sequence
        self._results: list[tuple[Range, bool]] = []
        self._shared: tuple[BfcAllocator, int] | None = None

    def fits(self, limit_bytes: int) -> bool:
        """Return whether the sequence succeeds under a limit."""
        if limit_bytes not in self.tried:
            known = (fits for limits, fits in self._results if limit_bytes in limits)
            fits = next(known, None)
            if fits is None:
                done, limits = self.run(limit_bytes)
                fits = done == len(self.sequence)
                self._results.append((limits, fits))
            self.tried[limit_bytes] = fits
        return self.tried[limit_bytes]

    def run(self, limit_bytes: int) -> tuple[int, Range]:
        """Return how many operations succeed under a limit, and all limits with the same run."""
        allocator, common = self._prepared(limit_bytes)
        done, _ = feed_sparing(allocator, self.sequence, common)
        return done, allocator.equal_limits

    def share(self, unlimited: Replay, bound: int) -> None:
        """Run once the operations that all limits from ``bound`` up have in common.

        A limit matters only when a region goes beyond it. Until then each run equals the unlimited
        one.
        """
        options, sequence = self.options, self.sequence
        is_special = options.fragmentation_fraction > 0 or options.driver_bytes is not None
        if is_special or bound < FIRST_REGION_BYTES:
            return
        common, pool_bytes = len(sequence), 0
        for extension in unlimited.extensions:
            pool_bytes += extension.size_bytes
            if pool_bytes > bound:
                common = extension.owner
                break
        started = self._new_allocator(bound)
        self._shared = started, started.feed(sequence.slot[:common], sequence.request[:common])

    def served(self, limit_bytes: int) -> Sequence:
        """Return the sequence without the optional buffers that find no memory under a limit."""
        if not self.sequence.spare.any():
            return self.sequence
        allocator, common = self._prepared(limit_bytes)
        skipped = np.zeros(self.sequence.n_buffers, bool)
        skipped[feed_sparing(allocator, self.sequence, common)[1]] = True
        return self.sequence.without(skipped)

    def _prepared(self, limit_bytes: int) -> tuple[BfcAllocator, int]:
        """Return an allocator under a limit, and the number of operations that it has done."""
        if self._shared is None:
            return self._new_allocator(limit_bytes), 0
        started, common = self._shared
        return started.under(limit_bytes), common

    def _new_allocator(self, limit_bytes: int) -> BfcAllocator:
        options = replace(self.options, memory_limit_bytes=limit_bytes)
        is_compiled = self.engine is Engine.COMPILED
        return BfcAllocator(options, self.sequence.n_buffers, is_compiled=is_compiled)

    def up(self, size_bytes: int) -> int:
        """Return the size rounded up to a multiple of the step."""
        return -(-size_bytes // self.step_bytes) * self.step_bytes

    def spread(self) -> range:
        """Return evenly spaced limits from the lower bound to a limit that surely suffices.

        The end is among the limits tried, and fits.
        """
        bound, top = self.ends()
        operations = max(1, len(self.sequence))
        budget = BUDGET if operations >= LONG_OPERATIONS else SHORT_BUDGET
        probes = min(MOST_PROBES, max(FEWEST_PROBES, budget // operations))
        return range(bound, top, self.up(max(self.step_bytes, (top - bound) // probes)))

    def ends(self) -> tuple[int, int]:
        """Return a lower bound, and a limit that fits; with growth all limits above fit also."""
        bound = int(self.needed.live_rounded_bytes().max(initial=0))
        bound = self.up(max(bound, GRANULE_BYTES))
        limit = bound
        # An optional buffer that fits takes memory, and a later one may then find none.
        if self.sequence.spare.any():
            limit = self.up(max(bound, int(self.sequence.live_rounded_bytes().max())))
        if self.options.growth:
            # A limit of at least the pool of an unlimited replay changes none of its regions.
            unlimited = replay(self.sequence, self.options.unlimited(), engine=self.engine)
            self.share(unlimited, bound)
            limit = self.up(max(limit, unlimited.peak_pool_bytes))
        elif (proven := self._find_proven_limit()) is not None:
            limit = self.up(max(limit, proven))
        return bound, self.up(self.enough(limit))

    def _find_proven_limit(self) -> int | None:
        """Return a limit from which on each run without growth equals the unlimited run.

        None if the driver or a fraction of the limit also matters: then there is no proof.
        """
        options = self.options
        if options.fragmentation_fraction > 0 or options.driver_bytes is not None:
            return None
        done, limits = self.run(UNLIMITED_BYTES)
        return limits.low if done == len(self.sequence) else None

    def find_proven_minimum(self, limits: range) -> int | None:
        """Return the smallest limit such that it and all larger ones succeed (no growth).

        Args:
            limits: The result of ``spread``: it sets the number of runs and the lower bound.

        Returns:
            None if that takes more runs, or cannot be proven.
        """
        if self.options.growth or self._find_proven_limit() is None:
            return None
        limit = max(self.tried)
        for _ in range(len(limits)):
            below = limit - self.step_bytes
            if below < limits.start or not self.fits(below):
                return limit
            least = max(equal.low for equal, _ in self._results if below in equal)
            limit = min(below, self.up(max(least, limits.start)))
        return None

    def find_above_failures(self, spacing: Spacing, top: int, floor: int) -> int:
        """Return the smallest limit from which on no limit tried fails, and at least ``floor``.

        Args:
            spacing: Distances between limits; they get smaller towards the floor.
            top: A limit under which and above which the sequence succeeds.
            floor: Lower end of the search.
        """
        fits, at = top, top - spacing.shift_bytes
        while fits > floor:
            at = max(self.up(at), floor)
            if not self.fits(at):
                return self.bisect(at, fits)
            fits, least = at, self._equal_limits(at).low
            step_bytes = max(spacing.near_bytes, 3 * (at - floor) // spacing.count)
            at = min(at - step_bytes, least - self.step_bytes)
        return floor

    def find_lowest_success(self, spacing: Spacing, bound: int, most_bytes: int) -> int:
        """Return the smallest limit found that succeeds, and at most ``most_bytes``.

        A success just below failing limits (``ISLAND``) does not count.

        Args:
            spacing: Distances between limits.
            bound: A lower bound of all limits; the search goes up from here.
            most_bytes: Upper end of the search.
        """
        fails, at = bound - self.step_bytes, self.up(bound + spacing.shift_bytes)
        step_bytes = max(spacing.near_bytes, (most_bytes - bound) // spacing.count)
        while at < most_bytes:
            if self.fits(at):
                lowest = self.bisect(fails, at)
                if self._fits_above(lowest):
                    return lowest
            else:
                fails = at
            at = self.up(max(at + step_bytes, self._equal_limits(at).high + 1))
        return most_bytes

    def _fits_above(self, limit_bytes: int) -> bool:
        """Return whether the sequence also succeeds under four limits just above a success."""
        above = (limit_bytes + int(ISLAND * limit_bytes * part / 4) for part in range(1, 5))
        return all(self.fits(self.up(limit)) for limit in above)

    def _equal_limits(self, limit_bytes: int) -> Range:
        """Return the limits with the same run as a limit that was tried."""
        equal = (limits for limits, _ in self._results if limit_bytes in limits)
        return next(equal, Range.exactly(limit_bytes))

    def enough(self, limit: int) -> int:
        """Return a limit under which the sequence succeeds, at least the given one."""
        while not self.fits(limit):
            limit = self.up(limit + limit // 4)
            if limit > UNLIMITED_BYTES:
                raise InputError(
                    "The sequence fails under every limit.",
                    hint="Check whether the driver has enough memory.",
                )
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
