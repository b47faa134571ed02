"""The smallest memory limit under which a sequence succeeds, under several settings.

Success is not monotone in the limit: another size of the last region makes the best fit choose other
chunks. So a few limits between a lower bound and a sufficient limit are tried, and the two ends of those
that fail are found by bisection.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np

from analyzer.model.errors import InputError
from analyzer.model.ranges import Range
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc import UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.replay import Sequence, fits, replay

FLOOR_BYTES: Final = 16 << 10
"""Smallest margin of a peak: about a hundred small buffers."""

LIMIT_MARGIN: Final = 0.03
"""Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few."""

PROBES: Final = 6  # limits to try between the lower bound and the sufficient limit

FINENESS: Final = 10_000  # steps in a limit: the precision of the search

OPERATIONS: Final = 2_000_000
"""Operations of all bisections together: a longer sequence is searched less precisely."""


class LimitSearch:
    """A search for one sequence; ``tried`` are the results by limit, all multiples of the step."""

    def __init__(
        self, sequence: Sequence, options: BfcOptions, step_bytes: int = 0
    ) -> None:
        needed = sequence.without(sequence.spare)
        bound_bytes = int(needed.live_rounded_bytes().max(initial=GRANULE_BYTES))
        step_bytes = max(
            round_up(step_bytes), round_up(bound_bytes // FINENESS), GRANULE_BYTES
        )
        top_bytes = _find_sufficient_limit(sequence, options)
        runs = min(max(OPERATIONS // max(len(sequence), 1), 3), 32)
        self.probes = min(PROBES, runs // 4)
        step_bytes = max(step_bytes, round_up((top_bytes - bound_bytes) >> runs))
        self.step_bytes = step_bytes
        self.bound = self.up(bound_bytes)
        """A lower bound of all limits: the peak of the rounded requests."""
        self.tried: dict[int, bool] = {}
        self._run = cache(lambda limit: fits(sequence, options.under(limit)))
        self.top = self.find_enough(max(self.up(top_bytes), self.bound))

    def up(self, size_bytes: int) -> int:
        """Return the size rounded up to a multiple of the step."""
        return -(-size_bytes // self.step_bytes) * self.step_bytes

    def fits(self, limit_bytes: int) -> bool:
        """Return whether the sequence succeeds under a limit."""
        self.tried[limit_bytes] = self._run(limit_bytes)
        return self.tried[limit_bytes]

    def find_enough(self, limit_bytes: int) -> int:
        """Return a limit under which the sequence succeeds, at least the given one."""
        while not self.fits(limit_bytes):
            limit_bytes = self.up(limit_bytes + limit_bytes // 8)
            if limit_bytes > UNLIMITED_BYTES:
                raise InputError("The sequence fails under every limit.")

        return limit_bytes

    def bisect(self, fails: int, enough: int) -> int:
        """Return a limit between the two that fits, while one step less fails."""
        while enough - fails > self.step_bytes:
            middle = (fails + enough) // 2 // self.step_bytes * self.step_bytes
            if self.fits(middle):
                enough = middle
            else:
                fails = middle

        return enough

    def search(self, also: Iterable[int] = ()) -> Range:
        """Return the smallest limit found that fits, and the smallest above which none failed."""
        probes = np.linspace(self.bound, self.top, self.probes, endpoint=False).tolist()
        for limit in (*map(self.up, map(int, probes)), *also):
            if limit >= self.bound:
                self.fits(limit)

        limits = sorted({self.bound - self.step_bytes: False, **self.tried}.items())
        if not limits[-1][1]:
            limits.append((self.find_enough(limits[-1][0]), True))

        changes = [
            (low, high)
            for (low, is_enough), (high, is_next_enough) in pairwise(limits)
            if is_next_enough and not is_enough
        ]
        return Range.spanning(
            self.bisect(*change) for change in (changes[0], changes[-1])
        )


def _find_sufficient_limit(sequence: Sequence, options: BfcOptions) -> int:
    """Return a limit that most likely suffices: the span of addresses in a single region."""
    single = replace(options.unlimited(), growth=False, fragmentation_fraction=0.0)
    result = replay(sequence, single)
    ends = result.address + result.chunk_bytes

    return int(ends.max(initial=options.first_address)) - options.first_address


def minimum_limit(
    sequence: Sequence,
    options: BfcOptions | None = None,
    *,
    step_bytes: int = 0,
    also: Iterable[int] = (),
) -> Range:
    """Return the smallest limit under which ``sequence`` succeeds, and the safe one.

    One step less than the first fails. The second is the smallest above which no limit tried failed.
    ``options`` are the CPU's by default; their limit is ignored, and a fragmentation fraction is a
    share of the limit being tried. Limits in ``also`` are tried too, so that the safe limit agrees with
    the result under each.
    """
    options = BfcOptions.cpu() if options is None else options
    return LimitSearch(sequence, options, step_bytes).search(also)


def find_shared_limits(sequences: Iterable[Sequence], options: BfcOptions) -> Range:
    """Return the limits below which none and above which all of several sequences succeed."""
    lowest_bytes, safe_bytes = UNLIMITED_BYTES, 0
    for sequence in sequences:
        if not safe_bytes or not fits(sequence, options.under(safe_bytes)):
            search = LimitSearch(sequence, options)
            safe_bytes = max(search.search().high, safe_bytes)

        bound_bytes = sequence.without(sequence.spare).live_rounded_bytes().max()
        lowest_bytes = min(lowest_bytes, int(bound_bytes))

    return Range(lowest_bytes, safe_bytes)
