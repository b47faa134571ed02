"""The smallest memory limit under which a sequence succeeds.

Success is not monotone in the limit: with growth, another size of the last region makes the best fit
choose other chunks. So the search goes down from a limit that surely suffices (the pool of an unlimited
replay) to the first failure, and up from a lower bound to the first success; both end in a bisection.
One run answers for a range of limits (``BfcAllocator.equal_limits``). Without growth adjacent ranges are
tried, so that ``safe_bytes``, the smallest limit above which no limit tried fails, is proven.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc import compiled_run
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import FIRST_REGION_BYTES, UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.replay import Sequence, replay

MOST_PROBES: Final = 256  # most limits tried in each direction, for short sequences
FEWEST_PROBES: Final = 16  # fewest, however long the sequence is

PLAIN_BUDGET, COMPILED_BUDGET = 150_000, 5_000_000
"""Operations of all limits in one direction, if each needed a whole run; most do not."""

ISLAND: Final = 0.01
"""Narrowest range of successful limits that counts below a failing limit, as a share of the limit:
the position of a narrower one differs from order to order, so a real run misses it."""

EXPECTED_RUNS: Final = 12  # expected number of runs of a search. Parts of runs count in proportion.

WHOLE_RUNS: Final = 48
"""The same without growth: the size of the pool is the limit, so runs have nothing in common."""

FINENESS: Final = 10_000  # steps in a peak when several sequences are searched


def prepare_searches(sequence: Sequence, searches: int = 1, *, growth: bool = True) -> None:
    """Load the compiled allocator if it repays a number of limit searches."""
    compiled_run.prepare(len(sequence) * (EXPECTED_RUNS if growth else WHOLE_RUNS) * searches)


class LimitSearch:
    """The limits tried so far for one sequence, all multiples of the step.

    ``probes`` limits are tried in each direction, the first moved by ``shift``, a share of the gap.
    """

    def __init__(
        self,
        sequence: Sequence,
        options: BfcOptions,
        step_bytes: int,
        probes: int = FEWEST_PROBES,
        shift: float = 0.0,
    ) -> None:
        self.sequence = sequence
        self.options = options
        self.step_bytes = step_bytes
        self.tried: dict[int, bool] = {}
        self._results: list[tuple[Range, bool]] = []
        # The allocator after the operations that all limits have in common, and their number.
        self._shared: tuple[BfcAllocator, int] | None = None
        peak_bytes = int(sequence.without(sequence.spare).live_rounded_bytes().max(initial=0))
        self.bound = self.up(max(peak_bytes, GRANULE_BYTES))
        """A lower bound of all limits: the peak of the rounded requests."""
        self._probes = probes
        # The distance of limits next to the limit searched for; it increases further away.
        self._near_bytes = max(step_bytes, self.bound // (8 * probes))
        self._shift_bytes = int(shift * self._near_bytes)
        self.top = self._find_top()
        """A limit that fits; with growth all larger limits fit also."""

    def fits(self, limit_bytes: int) -> bool:
        """Return whether the sequence succeeds under a limit."""
        if limit_bytes not in self.tried:
            self.tried[limit_bytes] = self._look_up(limit_bytes)[1]
        return self.tried[limit_bytes]

    def _look_up(self, limit_bytes: int) -> tuple[Range, bool]:
        """Return the limits with the same run as a limit, and whether the sequence succeeds."""
        for result in self._results:
            if limit_bytes in result[0]:
                return result
        done, limits = self.run(limit_bytes)
        self._results.append((limits, done == len(self.sequence)))
        return self._results[-1]

    def run(self, limit_bytes: int) -> tuple[int, Range]:
        """Return operations done under a limit, and the limits with the same run."""
        if self._shared is None:
            allocator, common = self._start(limit_bytes), 0
        else:
            started, common = self._shared
            allocator = started.under(limit_bytes)
        return feed_sparing(allocator, self.sequence, common), allocator.equal_limits

    def _start(self, limit_bytes: int) -> BfcAllocator:
        options = replace(self.options, memory_limit_bytes=limit_bytes)
        return BfcAllocator(options, self.sequence.n_buffers)

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
            done, limits = self.run(UNLIMITED_BYTES)
            if done == len(self.sequence):
                limit = max(limit, limits.low)
        return self.enough(self.up(limit))

    def _share_runs(self) -> int:
        """Run once the operations that all limits have in common; return the pool without a limit.

        A limit matters only when a region goes beyond it. Until then each run equals the unlimited
        one. A limit of at least the pool of an unlimited replay changes none of its regions.
        """
        unlimited = replay(self.sequence, self.options.unlimited())
        if not self.options.fragmentation_fraction and self.bound >= FIRST_REGION_BYTES:
            common, pool_bytes = len(self.sequence), 0
            for extension in unlimited.extensions:
                pool_bytes += extension.size_bytes
                if pool_bytes > self.bound:
                    common = extension.owner
                    break
            started = self._start(self.bound)
            started.feed(self.sequence.slot[:common], self.sequence.request[:common])
            self._shared = started, common
        return unlimited.peak_pool_bytes

    def find_above_failures(self, floor: int) -> int:
        """Return the smallest limit from which on no limit tried fails, and at least ``floor``."""
        fits, at, count = self.top, self.top - self._shift_bytes, 0
        is_provable = not (self.options.growth or self.options.fragmentation_fraction)
        adjacent = self._probes if is_provable else 0
        while fits > floor:
            at = max(self.up(at), floor)
            if not self.fits(at):
                return self.bisect(at, fits)
            fits, at = at, self._look_up(at)[0].low - self.step_bytes
            count += 1
            if count > adjacent:
                at = min(at, fits - max(self._near_bytes, 3 * (fits - floor) // self._probes))
        return floor

    def find_lowest_success(self, most_bytes: int, *, island: float = ISLAND) -> int:
        """Return the smallest limit found that succeeds, and at most ``most_bytes``.

        A success below failing limits counts only if wider than ``island``, a share of the limit.
        """
        fails, at = self.bound - self.step_bytes, self.up(self.bound + self._shift_bytes)
        step_bytes = max(self._near_bytes, (most_bytes - self.bound) // self._probes)
        while at < most_bytes:
            if self.fits(at):
                lowest = self.bisect(fails, at)
                above = (lowest + int(island * lowest * part / 4) for part in range(1, 5))
                if all(self.fits(self.up(limit)) for limit in above):
                    return lowest
            else:
                fails = at
            at = self.up(max(at + step_bytes, self._look_up(at)[0].high + 1))
        return most_bytes

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


def count_probes(operations: int) -> int:
    """Return how many limits to try for sequences with so many operations in all."""
    budget = COMPILED_BUDGET if compiled_run.is_loaded() else PLAIN_BUDGET
    return min(MOST_PROBES, max(FEWEST_PROBES, budget // max(operations, 1)))


def find_shared_limits(
    sequences: list[Sequence],
    options: BfcOptions,
    progress: Callable[[float], None] = lambda share: None,
) -> Range:
    """Return the limits below which none and above which all of several sequences succeed.

    Each search uses the bounds found so far, and tries limits slightly beside the limits of
    the search before, because similar orders fail and succeed at similar limits.
    """
    total = sum(map(len, sequences))
    compiled_run.prepare(FEWEST_PROBES * total)
    probes = count_probes(total)
    least_bytes, safe_bytes = UNLIMITED_BYTES, 0
    for number, sequence in enumerate(sequences):
        progress(number / len(sequences))
        peak_bytes = int(sequence.live_rounded_bytes().max(initial=0))
        fineness_bytes = max(round_up(peak_bytes // FINENESS), GRANULE_BYTES)
        shift = (number + 1) / len(sequences)
        search = LimitSearch(sequence, options, fineness_bytes, probes, shift)
        safe_bytes = search.find_above_failures(search.up(max(safe_bytes, search.bound)))
        least_bytes = search.find_lowest_success(min(least_bytes, safe_bytes))
    return Range(least_bytes, safe_bytes)


def feed_sparing(allocator: BfcAllocator, sequence: Sequence, first: int) -> int:
    """Run from ``first`` on without optional buffers that fail; return the operations done in all."""
    slot, request = sequence.slot[first:], sequence.request[first:]
    left = len(slot)
    while left:
        done = allocator.feed(slot, request)
        left = len(slot) - done
        if not left or not sequence.spare.size or not sequence.spare[slot[done]]:
            break
        rest = done + np.flatnonzero(slot[done:] != slot[done])
        slot, request = slot[rest], request[rest]
        left = len(slot)
    return len(sequence) - left


def minimum_limit(
    sequence: Sequence,
    options: BfcOptions | None = None,
    *,
    step_bytes: int = GRANULE_BYTES,
    also: Iterable[int] = (),
) -> Range:
    """Return the smallest limit under which ``sequence`` succeeds, and the safe one.

    One step less than the first fails. The second is the smallest above which no limit tried failed;
    without growth it is proven, if runs suffice.

    ``options`` are the CPU's by default; their limit is ignored, and a fragmentation fraction is a
    share of the limit being tried. Limits are multiples of ``step_bytes``, itself a multiple of 256.
    Limits in ``also`` are tried too, so that the safe limit agrees with the result under each.
    """
    options = BfcOptions.cpu() if options is None else options
    step_bytes = max(round_up(step_bytes), GRANULE_BYTES)
    prepare_searches(sequence, growth=options.growth)
    search = LimitSearch(sequence, options, step_bytes, count_probes(len(sequence)))
    search.find_lowest_success(search.find_above_failures(search.bound), island=0.0)
    for limit in (each // step_bytes * step_bytes for each in also):
        if limit >= search.bound:
            search.fits(limit)
    tried = search.tried
    lowest = min(limit for limit, fits in tried.items() if fits)
    below = [limit for limit, fits in tried.items() if not fits and limit < lowest]
    safe = lowest = search.bisect(max(below), lowest) if below else lowest
    above = [limit for limit, fits in tried.items() if not fits and limit > lowest]
    if above:
        search.enough(max(above) + step_bytes)
        fitting = min(limit for limit, fits in tried.items() if fits and limit > max(above))
        safe = search.bisect(max(above), fitting)
    return Range(lowest, safe)
