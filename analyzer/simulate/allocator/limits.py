"""The smallest memory limit under which a sequence succeeds, under several settings.

Success is not monotone in the limit: another size of the last region makes the best fit choose other
chunks. So a few limits between a lower bound and a sufficient limit are tried, and the two ends of those
that fail are found by bisection.
"""

from collections.abc import Iterable
from dataclasses import replace
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
    bound_bytes = _find_bound(sequence)
    top_bytes = _find_sufficient_limit(sequence, options)
    runs = min(max(OPERATIONS // max(len(sequence), 1), 3), 32)
    finest_bytes = max(bound_bytes // FINENESS, (top_bytes - bound_bytes) >> runs, 1)
    step = round_up(max(step_bytes, finest_bytes))

    def is_enough(limit_bytes: int) -> bool:
        return fits(sequence, options.under(limit_bytes))

    least = _round_to(step, bound_bytes)
    top = _round_to(step, top_bytes)
    results = {least - step: False}

    for probe in np.linspace(least, top, min(PROBES, runs // 4), endpoint=False):
        limit = _round_to(step, int(probe))
        results[limit] = is_enough(limit)

    for limit in also:
        if limit >= least:
            results[limit] = is_enough(limit)

    highest = max(*results, top)
    results[highest] = is_enough(highest)

    while not results[highest]:
        highest = _round_to(step, highest + highest // 8)
        if highest > UNLIMITED_BYTES:
            raise InputError("The sequence fails under every limit.")

        results[highest] = is_enough(highest)

    changes = []
    for low, high in pairwise(sorted(results)):
        if results[high] and not results[low]:
            changes.append((low, high))

    ends = []

    for fails, enough in (changes[0], changes[-1]):
        while enough - fails > step:
            middle = (fails + enough) // 2 // step * step
            if is_enough(middle):
                enough = middle
            else:
                fails = middle

        ends.append(enough)

    return Range.spanning(ends)


def _round_to(step_bytes: int, size_bytes: int) -> int:
    """Return a size rounded up to a multiple of the step."""
    return -(-size_bytes // step_bytes) * step_bytes


def _find_bound(sequence: Sequence) -> int:
    """Return a lower bound of all limits: the peak of the rounded requests that are needed."""
    needed = sequence.without(sequence.spare)
    return int(needed.live_rounded_bytes().max(initial=GRANULE_BYTES))


def _find_sufficient_limit(sequence: Sequence, options: BfcOptions) -> int:
    """Return a limit that most likely suffices: the span of addresses in a single region."""
    single = replace(options.unlimited(), growth=False, fragmentation_fraction=0.0)
    result = replay(sequence, single)
    ends = result.address + result.chunk_bytes

    return int(ends.max(initial=options.first_address)) - options.first_address


def find_shared_limits(sequences: Iterable[Sequence], options: BfcOptions) -> Range:
    """Return the limits below which none and above which all of several sequences succeed."""
    lowest_bytes = UNLIMITED_BYTES
    safe_bytes = 0

    for sequence in sequences:
        if not safe_bytes or not fits(sequence, options.under(safe_bytes)):
            safe_bytes = max(minimum_limit(sequence, options).high, safe_bytes)

        lowest_bytes = min(lowest_bytes, _find_bound(sequence))

    return Range(lowest_bytes, safe_bytes)
