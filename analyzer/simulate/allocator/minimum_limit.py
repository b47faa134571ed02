"""The smallest memory limit under which a sequence succeeds, and its parts.

Success is not monotone in the limit. With growth, the last region gets the rest of the limit, and
another size of it makes the best fit choose other chunks: a limit a few per cent above a
success may fail. So bisection alone is not enough. The search goes down from a limit that surely
suffices (the pool of an unlimited replay) to the first failure, and up from a lower bound to the
first success; both end in a bisection. ``limit_bytes`` is the smallest success; ``safe_bytes`` is
the smallest limit above which no limit tried fails, and decides "does it fit".

Without growth the pool is one region, and the unlimited run shows from which limit on all runs are
equal; this is a fifth to a quarter above the need. The search goes down from there, one run for
each range of equal limits. No limit is skipped, so ``safe_bytes`` is proven.

    requested peak  1000 MB      requested bytes of the live tensors
    + rounding        12 MB      to multiples of 256 B
    + unsplit         40 MB      chunks handed out whole, up to twice the request
    + external        60 MB      free when the limit is reached, in chunks that are too small
    = limit         1112 MB
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from analyzer.model.errors import AccountingError
from analyzer.model.units import GRANULE_BYTES, round_up
from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions
from analyzer.simulate.allocator.limit_search import LimitSearch, Spacing, count_probes, engine_for
from analyzer.simulate.allocator.replay import Engine, replay
from analyzer.simulate.allocator.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumLimit:
    """The smallest limit found, its parts, and the precision of the search.

    Attributes:
        limit_bytes: Smallest limit under which the sequence succeeded; one step less fails.
        safe_bytes: Smallest limit above which no limit tried failed; often the same. Without growth
            it is proven, unless that takes too many runs.
        rounding_bytes: Added to that peak by rounding requests to 256 bytes.
        unsplit_bytes: Added by chunks handed out whole, at this limit.
        external_bytes: The limit minus the peak in use: free, but of no use.
        safe_unsplit_bytes, safe_external_bytes: The same two at ``safe_bytes``.
        failed_above: Limits above ``limit_bytes`` under which the sequence failed.
    """

    limit_bytes: int
    safe_bytes: int
    bound_bytes: int
    requested_peak_bytes: int
    rounding_bytes: int
    unsplit_bytes: int
    external_bytes: int
    safe_unsplit_bytes: int
    safe_external_bytes: int
    failed_above: tuple[int, ...]

    def check(self) -> None:
        """Raise an ``AccountingError`` unless the parts add up to the two limits."""
        common = (self.requested_peak_bytes, self.rounding_bytes)
        for limit, parts in (
            (self.limit_bytes, (*common, self.unsplit_bytes, self.external_bytes)),
            (self.safe_bytes, (*common, self.safe_unsplit_bytes, self.safe_external_bytes)),
        ):
            if sum(parts) != limit or min(parts) < 0:
                raise AccountingError(f"{parts} do not add up to a limit of {limit}")


def minimum_limit(
    sequence: Sequence,
    options: BfcOptions | None = None,
    *,
    step_bytes: int = GRANULE_BYTES,
    also: Iterable[int] = (),
    engine: Engine = Engine.AUTO,
) -> MinimumLimit:
    """Find the smallest memory limit under which ``sequence`` succeeds.

    Args:
        options: The allocator's settings; their limit is ignored. The CPU's by default. A
            fragmentation fraction is a share of the limit being tried.
        step_bytes: Limits are multiples of this, itself a multiple of 256 bytes; 1 MiB matches
            ``TF_CPU_BFC_MEM_LIMIT_IN_MB``.
        also: Additional limits to try, so that ``safe_bytes`` agrees with the result under each.
    """
    options = BfcOptions.cpu() if options is None else options
    step_bytes = max(round_up(step_bytes), GRANULE_BYTES)
    if engine is Engine.AUTO:
        engine = engine_for(sequence, growth=options.growth)
    search = LimitSearch(sequence, options, step_bytes, engine)
    count = count_probes(len(sequence), engine)
    near_bytes = max(step_bytes, search.bound // (8 * count))
    is_provable = not (options.growth or options.fragmentation_fraction)
    spacing = Spacing(count=count, near_bytes=near_bytes, adjacent=count if is_provable else 0)
    safe = search.find_above_failures(spacing, search.bound)
    search.find_lowest_success(spacing, safe, island=0.0)
    for limit in (each // step_bytes * step_bytes for each in also):
        if limit >= search.bound:
            search.fits(limit)
    lowest = _find_lowest(search)
    return _divide(search, lowest, _find_safe(search, lowest))


def _find_lowest(search: LimitSearch) -> int:
    """Return the lowest limit that suffices, between those tried."""
    lowest = min(limit for limit, fits in search.tried.items() if fits)
    below = [limit for limit, fits in search.tried.items() if not fits and limit < lowest]
    return search.bisect(max(below), lowest) if below else lowest


def _find_safe(search: LimitSearch, lowest: int) -> int:
    """Return the limit from which on all tried ones suffice."""
    failed = max((n for n, fits in search.tried.items() if not fits and n > lowest), default=None)
    if failed is None:
        return lowest
    search.enough(failed + search.step_bytes)
    above = min(limit for limit, fits in search.tried.items() if fits and limit > failed)
    return search.bisect(failed, above)


def _divide(search: LimitSearch, lowest: int, safe: int) -> MinimumLimit:
    """Return the two limits found with their parts."""
    served = search.sequence
    if served.spare.any():
        skipped = np.zeros(served.n_buffers, bool)
        skipped[search.run(lowest)[2]] = True
        served = served.without(skipped)
    requested = int(served.live_requested_bytes().max(initial=0))
    bound = int(served.live_rounded_bytes().max(initial=0))

    def find_peak(limit_bytes: int) -> int:
        under = replace(search.options, memory_limit_bytes=limit_bytes)
        return replay(served, under, engine=search.engine).peak_in_use_bytes

    in_use = find_peak(lowest)
    safe_in_use = in_use if safe == lowest else find_peak(safe)
    failed = (limit for limit, fits in search.tried.items() if limit > lowest and not fits)
    result = MinimumLimit(
        limit_bytes=lowest,
        safe_bytes=safe,
        bound_bytes=bound,
        requested_peak_bytes=requested,
        rounding_bytes=bound - requested,
        unsplit_bytes=in_use - bound,
        external_bytes=lowest - in_use,
        safe_unsplit_bytes=safe_in_use - bound,
        safe_external_bytes=safe - safe_in_use,
        failed_above=tuple(sorted(failed)),
    )
    result.check()
    return result
