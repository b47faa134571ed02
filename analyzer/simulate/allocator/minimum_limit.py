"""The smallest memory limit under which a sequence succeeds, and what it consists of.

Success is not monotone in the limit. With growth, the last region is what the limit leaves over; a
slightly smaller or larger one makes the best fit choose other chunks, and a limit that is a few per
cent above one that works may fail. So the search does not only bisect: it tries limits evenly
spread from a bound that none can go under to one that is surely enough (the pool that an unlimited
replay takes), then bisects at the lowest success and above the highest failure. ``limit_bytes`` is the
smallest success found; ``safe_bytes`` the smallest above which nothing that was tried failed, and the
figure to rest "does it fit" on.

Without growth the pool is one region, and one chunk at its end is as much larger as the limit is. A run
with all memory there is says from which limit on every run is that same one
(``limit_sensitivity``): where that chunk is taken it is at least twice the
request, and where another is taken it is the larger. That bound is a fifth to a quarter above the need.
From there the search goes down, each run answering for all limits under which it is the same, to the
first that fails: ``safe_bytes`` is then proven, no limit between having been passed over. (Limits a
quarter apart, the first success of which was taken before, missed a failure above it in 2 of 300
random sequences.)

    requested peak  1000 MB      what the live tensors asked for
    + rounding        12 MB      to multiples of 256 B
    + unsplit         40 MB      chunks handed out whole, up to twice the request
    + external        60 MB      free when the limit is reached, in pieces too small
    = limit         1112 MB
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, replace

import numpy as np

from analyzer.model.errors import AccountingError, InputError
from analyzer.model.units import GRANULE_BYTES
from analyzer.simulate.allocator.bfc.bfc_options import (
    FIRST_REGION_BYTES,
    UNLIMITED_BYTES,
    AsyncOptions,
    BfcOptions,
    Options,
    round_up,
)
from analyzer.simulate.allocator.replay import (
    Engine,
    Replay,
    choose,
    replay,
)
from analyzer.simulate.allocator.sequence import Sequence
from analyzer.simulate.allocator.sequence_runner import Feedable, allocator_of, feed_sparing

MOST_PROBES = 256
"""Limits tried, evenly spread, where replays are cheap."""

FEWEST_PROBES = 24
"""Limits tried, evenly spread, however long the sequence."""

EXPECTED_RUNS = 12
"""Whole runs that a search takes, counting parts of them as such: for the choice of the engine."""

WHOLE_RUNS = 2 * FEWEST_PROBES
"""The same where the pool is taken at once: its size is the limit, and each limit tried is a run."""

LONG_OPERATIONS = 20_000
"""From this length on a sequence is searched finely."""

BUDGET = 20_000_000
"""Operations that the limits tried may have in all, were each run; one run answers for many limits."""

SHORT_BUDGET = 150_000
"""Operations likewise, where the sequence is short."""

FEWEST_SHARED = 16
"""Limits tried of each of several sequences, however long they are."""

SHARED_BUDGET = 5_000_000
"""Operations that the limits tried of several sequences may have in all, were each run and compiled."""

ISLAND = 0.01
"""Share of a limit: successes over a narrower stretch, below limits that fail, are left out. Where such
a stretch lies differs from order to order, so that a real run misses it."""

FINENESS = 10_000
"""Steps into which a peak is divided where several sequences are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumLimit:
    """The smallest limit found, its parts, and how sure it is.

    Attributes:
        limit_bytes: Smallest limit at which the sequence succeeded.
        safe_bytes: Smallest limit from which on nothing tried failed; often the same. Without growth
            no limit above it fails, unless going down to it takes more runs than there may be.
        bound_bytes: What no limit can go under: the peak of the rounded requests.
        step_bytes: How finely the limits were searched: ``limit_bytes - step_bytes`` fails.
        spacing_bytes: How far apart the spread-out trials were; islands of success or failure
            narrower than this can have been missed.
        requested_peak_bytes: Most requested bytes alive at once.
        rounding_bytes: What rounding every request to 256 bytes adds to that peak.
        unsplit_bytes: What chunks handed out whole add to it, at this limit.
        external_bytes: What the limit exceeds the peak in use by: free, and yet of no use.
        safe_unsplit_bytes, safe_external_bytes: The same two at ``safe_bytes``.
        probes: Replays done.
        failed_above: Limits above ``limit_bytes`` at which the sequence failed.
    """

    limit_bytes: int
    safe_bytes: int
    bound_bytes: int
    step_bytes: int
    spacing_bytes: int
    requested_peak_bytes: int
    rounding_bytes: int
    unsplit_bytes: int
    external_bytes: int
    safe_unsplit_bytes: int
    safe_external_bytes: int
    probes: int
    failed_above: tuple[int, ...]

    def check(self) -> None:
        """Check that the parts add up to the two limits.

        Raises:
            AccountingError: they do not.
        """
        common = (self.requested_peak_bytes, self.rounding_bytes)
        for limit, parts in (
            (self.limit_bytes, (*common, self.unsplit_bytes, self.external_bytes)),
            (self.safe_bytes, (*common, self.safe_unsplit_bytes, self.safe_external_bytes)),
        ):
            if sum(parts) != limit or min(parts) < 0:
                raise AccountingError(f"{parts} do not add up to a limit of {limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spacing:
    """How far apart limits are tried.

    Attributes:
        count: About how many are tried in all.
        near_bytes: Between those next to the limit that is searched; further off more.
        shift_bytes: How far from the end the first one is.
    """

    count: int
    near_bytes: int
    shift_bytes: int


class _Search:
    """Limits tried so far, all multiples of the step."""

    def __init__(
        self, sequence: Sequence, options: BfcOptions, step_bytes: int, engine: Engine
    ) -> None:
        self.sequence = sequence
        self.options = options
        self.step_bytes = step_bytes
        self.engine = engine
        self.tried: dict[int, bool] = {}
        self.needed = sequence.without(sequence.spare) if sequence.spare.any() else sequence
        self._known: list[tuple[int, int, bool]] = []
        self._shared: tuple[Feedable, int] | None = None

    def fits(self, limit_bytes: int) -> bool:
        if limit_bytes not in self.tried:
            known = (fits for least, most, fits in self._known if least <= limit_bytes <= most)
            found = next(known, None)
            if found is None:
                done, least, most = self._done(limit_bytes)
                found = done == len(self.sequence)
                self._known.append((least, most, found))
            self.tried[limit_bytes] = found
        return self.tried[limit_bytes]

    def share(self, unlimited: Replay, bound: int) -> None:
        """Do once what every limit from ``bound`` up has in common.

        A limit shows only when a region is taken that goes beyond it; until then every run is the
        unlimited one.
        """
        options, sequence = self.options, self.sequence
        apart = options.fragmentation_fraction > 0 or options.driver_bytes is not None
        if apart or bound < FIRST_REGION_BYTES:
            return
        common, pool_bytes = len(sequence), 0
        for extension in unlimited.extensions:
            pool_bytes += extension.size_bytes
            if pool_bytes > bound:
                common = extension.owner
                break
        begun = self._begin(bound)
        self._shared = begun, begun.feed(sequence.slot[:common], sequence.request[:common])

    def _done(self, limit_bytes: int) -> tuple[int, int, int]:
        """Return how many operations succeed under a limit, and from which to which limit it is so."""
        allocator, common = self._prepared(limit_bytes)
        done, _ = feed_sparing(allocator, self.sequence, common)
        return done, *allocator.same_under

    def served(self, limit_bytes: int) -> Sequence:
        """Return the sequence without what finds no room under a limit."""
        if not self.sequence.spare.any():
            return self.sequence
        missed = np.zeros(self.sequence.n_buffers, bool)
        missed[self._missed(limit_bytes)] = True
        return self.sequence.without(missed)

    def _missed(self, limit_bytes: int) -> list[int]:
        allocator, common = self._prepared(limit_bytes)
        return feed_sparing(allocator, self.sequence, common)[1]

    def _prepared(self, limit_bytes: int) -> tuple[Feedable, int]:
        """Return an allocator under a limit, and how many operations it has done."""
        if self._shared is None:
            return self._begin(limit_bytes), 0
        begun, common = self._shared
        return begun.under(limit_bytes), common

    def _begin(self, limit_bytes: int) -> Feedable:
        options = replace(self.options, memory_limit_bytes=limit_bytes)
        is_compiled = self.engine is Engine.COMPILED
        return allocator_of(options, self.sequence.n_buffers, is_compiled=is_compiled)

    def up(self, size_bytes: int) -> int:
        return -(-size_bytes // self.step_bytes) * self.step_bytes

    def spread(self) -> range:
        """Return limits evenly spread from one that none can go under to one that is surely enough.

        The end is among those tried, and fits.
        """
        bound, top = self.ends()
        operations = max(1, len(self.sequence))
        budget = BUDGET if operations >= LONG_OPERATIONS else SHORT_BUDGET
        probes = min(MOST_PROBES, max(FEWEST_PROBES, budget // operations))
        return range(bound, top, self.up(max(self.step_bytes, (top - bound) // probes)))

    def ends(self) -> tuple[int, int]:
        """Return a limit that none can go under, and one under which and above which it succeeds."""
        bound = int(self.needed.live_rounded_bytes().max(initial=0))
        bound = self.up(max(bound, GRANULE_BYTES))
        return bound, self.up(self._enough_to_grow(bound))

    def _enough_to_grow(self, bound: int) -> int:
        """Return a limit at which the sequence succeeds and, with growth, does above it, too.

        With growth, a limit at or above the pool of an unlimited replay changes none of its regions.
        What may be done without takes room where there is some, and others may then find none.
        """
        limit = bound
        if self.sequence.spare.any():
            limit = self.up(max(bound, int(self.sequence.live_rounded_bytes().max())))
        if self.options.growth:
            unlimited = replace(self.options, memory_limit_bytes=UNLIMITED_BYTES)
            free = replay(self.sequence, unlimited, engine=self.engine)
            self.share(free, bound)
            limit = self.up(max(limit, free.peak_pool_bytes))
        elif (proven := self._proven_at_once()) is not None:
            limit = self.up(max(limit, proven))
        return self.enough(limit)

    def _proven_at_once(self) -> int | None:
        """Return a limit from which on every run without growth is that with all memory there is.

        None where the driver, or a fraction of the limit, has a say too: then nothing is proven.
        """
        options = self.options
        if options.fragmentation_fraction > 0 or options.driver_bytes is not None:
            return None
        done, least, _ = self._done(UNLIMITED_BYTES)
        return least if done == len(self.sequence) else None

    def lowest_of_all(self, limits: range) -> int | None:
        """Return the smallest limit from which on all succeed, without growth, none being passed over.

        Args:
            limits: Those that are spread out, as ``spread`` returns them: how many runs there may
                be, and where nothing can succeed any more.

        Returns:
            None where that takes more runs, or is not proven.
        """
        if self.options.growth or self._proven_at_once() is None:
            return None
        limit = max(self.tried)
        for _ in range(len(limits)):
            below = limit - self.step_bytes
            if below < limits.start or not self.fits(below):
                return limit
            least = max(low for low, high, _ in self._known if low <= below <= high)
            limit = min(below, self.up(max(least, limits.start)))
        return None

    def highest_failure(self, spacing: Spacing, top: int, floor: int) -> int:
        """Return the smallest limit from which on nothing tried fails, or ``floor`` if that is more.

        Args:
            spacing: How far apart limits are tried: the nearer to the floor the finer.
            top: A limit under which and above which the sequence succeeds.
            floor: Where the search from the top down ends.
        """
        fits, at = top, top - spacing.shift_bytes
        while fits > floor:
            at = max(self.up(at), floor)
            if not self.fits(at):
                return self.bisect(at, fits)
            fits, least = at, self._same_as(at)[0]
            step_bytes = max(spacing.near_bytes, 3 * (at - floor) // spacing.count)
            at = min(at - step_bytes, least - self.step_bytes)
        return floor

    def lowest_success(self, spacing: Spacing, bound: int, most_bytes: int) -> int:
        """Return the smallest limit found under which the sequence succeeds, or ``most_bytes`` if less.

        One that limits just above it fail again (``ISLAND``) does not count.

        Args:
            spacing: How far apart limits are tried.
            bound: A limit that none can go under, from which up is searched.
            most_bytes: Where to end.
        """
        fails, at = bound - self.step_bytes, self.up(bound + spacing.shift_bytes)
        step_bytes = max(spacing.near_bytes, (most_bytes - bound) // spacing.count)
        while at < most_bytes:
            if self.fits(at):
                found = self.bisect(fails, at)
                if self._goes_on(found):
                    return found
            else:
                fails = at
            at = self.up(max(at + step_bytes, self._same_as(at)[1] + 1))
        return most_bytes

    def _goes_on(self, limit_bytes: int) -> bool:
        """Say whether the sequence succeeds under limits just above one under which it does, too."""
        above = (limit_bytes + int(ISLAND * limit_bytes * part / 4) for part in range(1, 5))
        return all(self.fits(self.up(limit)) for limit in above)

    def _same_as(self, limit_bytes: int) -> tuple[int, int]:
        """Return between which limits every run ends as that under a limit that was tried."""
        ranges = (known[:2] for known in self._known if known[0] <= limit_bytes <= known[1])
        return next(ranges, (limit_bytes, limit_bytes))

    def enough(self, limit: int) -> int:
        """Return a limit at which the sequence succeeds, not under the one given."""
        while not self.fits(limit):
            limit = self.up(limit + limit // 4)
            if limit > UNLIMITED_BYTES:
                raise InputError(
                    "the sequence fails under every limit.", hint="Does the driver have too little?"
                )
        return limit

    def bisect(self, fails: int, fits: int) -> int:
        """Return a limit that fits, one step above one that fails, between the two given."""
        while fits - fails > self.step_bytes:
            middle = (fails + fits) // 2 // self.step_bytes * self.step_bytes
            if self.fits(middle):
                fits = middle
            else:
                fails = middle
        return fits


def minimum_limit(
    sequence: Sequence,
    options: Options | None = None,
    *,
    step_bytes: int = GRANULE_BYTES,
    also: Iterable[int] = (),
    engine: Engine = Engine.AUTO,
) -> MinimumLimit:
    """Search the smallest memory limit under which ``sequence`` succeeds.

    Args:
        sequence: What is allocated and freed.
        options: The allocator's set-up but for its limit; the CPU's by default. A fragmentation
            fraction is taken of the limit being tried.
        step_bytes: Limits tried are multiples of this, itself a multiple of 256 bytes; 1 MiB
            matches ``TF_CPU_BFC_MEM_LIMIT_IN_MB``.
        also: Limits to try beside those of the search, so that ``safe_bytes`` agrees with what
            happens under each of them; the allocator uses whole steps of 256 bytes of a limit.
        engine: Which implementation replays.
    """
    options = BfcOptions.cpu() if options is None else options
    step_bytes = max(round_up(step_bytes), GRANULE_BYTES)
    if isinstance(options, AsyncOptions):
        needed = sequence.without(sequence.spare) if sequence.spare.any() else sequence
        return _async_limit(int(needed.live_requested_bytes().max(initial=0)))
    if engine is Engine.AUTO:
        engine = engine_for(sequence, growth=options.growth)
    search = _Search(sequence, options, step_bytes, engine)
    spread = search.spread()
    search.lowest_of_all(spread)
    least = int(search.needed.live_rounded_bytes().max(initial=0))
    for limit in (*spread, *(each // step_bytes * step_bytes for each in also)):
        if limit >= least:
            search.fits(limit)
    found = min(limit for limit, fits in search.tried.items() if fits)
    below = [limit for limit, fits in search.tried.items() if not fits and limit < found]
    if below:
        found = search.bisect(max(below), found)
    failed = [limit for limit, fits in search.tried.items() if not fits and limit > found]
    safe = found
    if failed:
        search.enough(max(failed) + step_bytes)
        above = [limit for limit, fits in search.tried.items() if fits and limit > max(failed)]
        safe = search.bisect(max(failed), min(above))
    return _parts(search, found, safe, spread.step)


def _parts(search: _Search, found: int, safe: int, spacing_bytes: int) -> MinimumLimit:
    """Return what the limits that were found consist of.

    Args:
        search: The search, done.
        found: The smallest limit in bytes.
        safe: The smallest limit from which on none that was tried fails.
        spacing_bytes: Between the limits that the search spread out.
    """
    served = search.served(found)
    requested = int(served.live_requested_bytes().max(initial=0))
    bound = int(served.live_rounded_bytes().max(initial=0))

    def in_use_under(limit_bytes: int) -> int:
        under = replace(search.options, memory_limit_bytes=limit_bytes)
        return replay(served, under, engine=search.engine).peak_in_use_bytes

    in_use = in_use_under(found)
    safe_in_use = in_use if safe == found else in_use_under(safe)
    result = MinimumLimit(
        limit_bytes=found,
        safe_bytes=safe,
        bound_bytes=bound,
        step_bytes=search.step_bytes,
        spacing_bytes=spacing_bytes,
        requested_peak_bytes=requested,
        rounding_bytes=bound - requested,
        unsplit_bytes=in_use - bound,
        external_bytes=found - in_use,
        safe_unsplit_bytes=safe_in_use - bound,
        safe_external_bytes=safe - safe_in_use,
        probes=len(search.tried),
        failed_above=tuple(sorted(n for n, fits in search.tried.items() if n > found and not fits)),
    )
    result.check()
    return result


def safe_limit(
    sequence: Sequence,
    options: BfcOptions,
    *,
    least_bytes: int = 0,
    step_bytes: int = GRANULE_BYTES,
    engine: Engine = Engine.AUTO,
) -> int:
    """Return ``safe_bytes`` of ``minimum_limit`` alone, which takes fewer trials.

    Args:
        sequence: What is allocated and freed.
        options: The allocator's set-up but for its limit.
        least_bytes: What is returned where the sequence needs no more than that.
        step_bytes: Limits tried are multiples of this, itself a multiple of 256 bytes.
        engine: Which implementation replays.
    """
    if engine is Engine.AUTO:
        engine = engine_for(sequence, growth=options.growth)
    search = _Search(sequence, options, step_bytes, engine)
    spread = search.spread()
    proven = search.lowest_of_all(spread)
    if proven is not None:
        return max(proven, least_bytes)
    limits = sorted({*spread, *search.tried}, reverse=True)
    fits: int = limits[0]
    for limit in limits[1:]:
        if fits <= least_bytes:
            return least_bytes
        if not search.fits(limit):
            fits = search.bisect(limit, fits)
            break
        fits = limit
    return max(fits, least_bytes)


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Between which limits it depends on the sequence whether it succeeds.

    Attributes:
        least_bytes: The smallest limit found under which any of the sequences succeeds.
        safe_bytes: The smallest limit from which on nothing tried failed for any of them.
    """

    least_bytes: int
    safe_bytes: int


def shared_limits(
    sequences: Sequences[Sequence],
    options: BfcOptions,
    *,
    engine: Engine = Engine.AUTO,
    progress: Callable[[float], None] | None = None,
) -> SharedLimits:
    """Search the limits under which none, some and all of several sequences succeed.

    Each is fed whole under each limit that is tried, so that what it does without where there is no
    room, and which chunks it finds, are those of that limit. What one of them settles is not searched
    again for the others, and each is tried at limits a little beside those of the one before: failures
    and successes of orders that are much alike lie together.

    Args:
        sequences: Orders in which one process may ask; at least one.
        options: The allocator's set-up but for its limit.
        engine: Which implementation replays.
        progress: Called with the share done, 0 to 1.
    """
    report = progress or (lambda share: None)
    total = sum(map(len, sequences))
    chosen = choose(engine, FEWEST_SHARED * total)
    count = FEWEST_SHARED
    if chosen is Engine.COMPILED:
        count = min(MOST_PROBES, max(count, SHARED_BUDGET // total))
    least_bytes, safe_bytes = UNLIMITED_BYTES, 0
    for number, sequence in enumerate(sequences):
        report(number / len(sequences))
        peak_bytes = int(sequence.live_rounded_bytes().max(initial=0))
        search = _Search(sequence, options, round_up(peak_bytes // FINENESS), chosen)
        bound, top = search.ends()
        near_bytes = bound // (8 * count)
        shift_bytes = near_bytes * (number + 1) // len(sequences)
        spacing = Spacing(count=count, near_bytes=near_bytes, shift_bytes=shift_bytes)
        safe_bytes = search.highest_failure(spacing, top, search.up(max(safe_bytes, bound)))
        least_bytes = search.lowest_success(spacing, bound, min(least_bytes, safe_bytes))
    return SharedLimits(least_bytes, safe_bytes)


def engine_for(sequence: Sequence, searches: int = 1, *, growth: bool = True) -> Engine:
    """Return the implementation that so many searches of such a sequence's limit use.

    Args:
        sequence: What is allocated and freed.
        searches: How many searches.
        growth: Whether the pool grows; the limits tried have then most of their runs in common.
    """
    runs = EXPECTED_RUNS if growth else WHOLE_RUNS
    return choose(Engine.AUTO, len(sequence) * runs * searches)


def _async_limit(requested: int) -> MinimumLimit:
    """Return the limit without rounding and without fragments: the requested peak itself."""
    return MinimumLimit(
        limit_bytes=requested,
        safe_bytes=requested,
        bound_bytes=requested,
        step_bytes=1,
        spacing_bytes=1,
        requested_peak_bytes=requested,
        rounding_bytes=0,
        unsplit_bytes=0,
        external_bytes=0,
        safe_unsplit_bytes=0,
        safe_external_bytes=0,
        probes=0,
        failed_above=(),
    )
