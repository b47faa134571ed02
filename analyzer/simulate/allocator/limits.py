"""The smallest memory limit under which a sequence succeeds, under several settings.

Success is not monotone in the limit: another size of the last region makes the best fit choose other
chunks. So a few limits between a lower bound and a sufficient limit are tried, and the two ends of those
that fail are found by bisection.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from analyzer.model.errors import InputError
from analyzer.model.units import GRANULE_BYTES, Range, round_up
from analyzer.simulate.allocator.bfc import UNLIMITED_BYTES, BfcOptions
from analyzer.simulate.allocator.replay import Sequence, fits, replay

# Smallest margin of a peak: about a hundred small buffers.
FLOOR_BYTES = 16 << 10

# Share added to the sufficient limit for chunk positions that no schedule shows. A real run on a card
# failed 0.3 % above the limit of 15 schedules; runs on a CPU needed up to 2.5 % more than a few.
LIMIT_MARGIN = 0.03

PROBES = 4  # limits to try between the lower bound and the sufficient limit

FINENESS = 2_000  # steps in a limit: the precision of the search

# Operations of all bisections together: a longer sequence is searched less precisely.
OPERATIONS = 2_000_000


def minimum_limit(
    sequence: Sequence,
    options: BfcOptions,
    *,
    also: Iterable[int] = (),
) -> Range:
    """Return the smallest limit under which ``sequence`` succeeds, and the safe one.

    One step less than the first fails. The second is the smallest above which no limit tried failed.
    The limit of ``options`` is ignored. Limits in ``also`` are tried too, so that the safe limit agrees
    with the result under each.
    """
    search = _Search(sequence, options, _find_bound(sequence))
    search.try_all(also)
    changes = search.find_changes()
    ends = {changes[0], changes[-1]}  # most often one change

    return Range.spanning(search.bisect(*one) for one in ends)


class _Search:
    """A search for the limits at which a sequence begins to succeed, from ``least_bytes`` on."""

    def __init__(
        self,
        sequence: Sequence,
        options: BfcOptions,
        least_bytes: int,
    ) -> None:
        top_bytes = max(_find_sufficient_limit(sequence, options), least_bytes)
        runs = min(max(OPERATIONS // max(len(sequence), 1), 3), 32)
        finest_bytes = (top_bytes - least_bytes) >> runs
        self.step = round_up(max(least_bytes // FINENESS, finest_bytes, 1))
        self.sequence = sequence
        self.options = options
        self.least = self._round(least_bytes)
        self.results = {self.least - self.step: False}

        top = self._round(top_bytes)
        probes = np.linspace(self.least, top, min(PROBES, runs // 4), endpoint=False)
        self.try_all([*(self._round(int(one)) for one in probes), top])

    def try_all(self, limits: Iterable[int]) -> None:
        """Find out whether the sequence succeeds under limits; smaller ones are known to fail."""
        for limit in limits:
            if limit >= self.least and limit not in self.results:
                self.results[limit] = self._is_enough(limit)

    def find_changes(self) -> list[tuple[int, int]]:
        """Return the neighbours among the limits tried of which the higher alone suffices."""
        highest = max(self.results)
        while not self.results[highest]:
            highest = self._round(highest + highest // 8)
            if highest > UNLIMITED_BYTES:
                raise InputError("The sequence fails under every limit.")

            self.results[highest] = self._is_enough(highest)

        changes = []
        for low, high in pairwise(sorted(self.results)):
            if self.results[high] and not self.results[low]:
                changes.append((low, high))

        return changes

    def bisect(self, fails: int, enough: int) -> int:
        """Return the smallest limit between two that suffices, if there is one change only."""
        while enough - fails > self.step:
            middle = (fails + enough) // 2 // self.step * self.step
            middle = max(middle, fails + self.step)  # ends need not be whole steps
            if self._is_enough(middle):
                enough = middle
            else:
                fails = middle

        return enough

    def _is_enough(self, limit_bytes: int) -> bool:
        return fits(self.sequence, self.options.under(limit_bytes))

    def _round(self, size_bytes: int) -> int:
        """Return a size rounded up to a whole number of steps."""
        return -(-size_bytes // self.step) * self.step


def _find_bound(sequence: Sequence) -> int:
    """Return a lower bound of all limits: the peak of the rounded requests that are needed."""
    needed = sequence.without(sequence.spare)
    return int(needed.live_rounded_bytes().max(initial=GRANULE_BYTES))


def _find_sufficient_limit(sequence: Sequence, options: BfcOptions) -> int:
    """Return a limit that most likely suffices: the span of addresses in a single region."""
    result = replay(sequence, replace(options.unlimited(), growth=False))
    ends = result.address + result.chunk_bytes

    return int(ends.max() - result.address.min())


def find_shared_limits(
    sequences: Iterable[Sequence],
    options: BfcOptions,
) -> Range:
    """Return the limits below which none and above which all of several sequences succeed."""
    safe_bytes = 0
    lowest_bytes = UNLIMITED_BYTES

    for sequence in sequences:
        bound_bytes = _find_bound(sequence)
        lowest_bytes = min(lowest_bytes, bound_bytes)

        if safe_bytes and fits(sequence, options.under(safe_bytes)):
            continue

        search = _Search(sequence, options, max(bound_bytes, safe_bytes))
        safe_bytes = search.bisect(*search.find_changes()[-1])

    return Range(lowest_bytes, safe_bytes)
