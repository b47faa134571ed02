"""The pool, the least memory limits, the verdict, the card, and a replay under other settings."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import Instant, ReportRecord, Signed, Text, Total, Word
from analyzer.model.contract.report.trust_figures import ReplayCheck

Fits = bool | Literal["may not"] | None
"""Whether the step fits: null where no limit was given or nothing can be said."""


class Outcome(Choice):
    """What can be said of the question whether the step fits."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_TELL = "cannot tell"
    NO_LIMIT = "no limit given"
    FAILED = "failed"


class LimitOf(Choice):
    """Whose limit the verdict is about."""

    CARD = "card"
    USER = "user"


class NeedOf(Choice):
    """Which number is held against the limit."""

    LEAST_LIMIT = "least memory limit"
    ALLOCATED = "allocated peak"


class Basis(Choice):
    """What the figures rest on: kernels ran, nothing ran, or TensorFlow's GPU runtime without a card."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    PHANTOM = "phantom"


class PoolChange(ReportRecord, frozen=True, kw_only=True):
    """The pool's size from an instant on."""

    instant: Instant
    pool_bytes: Total


class LimitParts(ReportRecord, frozen=True, kw_only=True):
    """What a memory limit is made of.

    Attributes:
        requested_bytes: What live tensors asked for at the instant that needs most.
        rounding_bytes: Rounding to 256 bytes.
        unsplit_bytes: Chunks handed out whole.
        external_bytes: Gaps that nothing fits into.
    """

    requested_bytes: Total
    rounding_bytes: Total
    unsplit_bytes: Signed
    external_bytes: Signed


class FragmentationFigures(ReportRecord, frozen=True, kw_only=True):
    """Waste inside the pool at the allocated peak, and the least limits; None where not known.

    Attributes:
        internal_bytes: Allocated less requested: ``rounding_bytes`` and ``unsplit_bytes``.
        external_bytes: ``free_bytes`` outside of ``largest_free_bytes``.
        reported_ratio: (free - largest free) / free, as TensorFlow wrote it.
        minimum_limit_bytes: The smallest limit under which a replay succeeds.
        safe_limit_bytes: The limit from which on every replay succeeds.
        minimum_limit_parts, safe_limit_parts: What the two are made of.
        limit_reached_in: When their requested bytes are reached; None at the steady peak.
        replay_equals_trace: Whether the replay of a trace gave what TensorFlow wrote.
        risk: ``low``, ``medium`` or ``high``.
    """

    internal_bytes: Total
    rounding_bytes: Total = 0
    unsplit_bytes: Total = 0
    external_bytes: Total | None = None
    free_bytes: Total | None = None
    largest_free_bytes: Total | None = None
    reported_ratio: float | None = None
    minimum_limit_bytes: Total | None = None
    safe_limit_bytes: Total | None = None
    minimum_limit_parts: LimitParts | None = None
    safe_limit_parts: LimitParts | None = None
    limit_reached_in: Word | None = None
    replay_equals_trace: bool | None = None
    risk: Literal["low", "medium", "high"] | None = None


class VerdictFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether the step fits, each number under one name; see ``Verdict``.

    Attributes:
        outcome: The answer.
        basis: What the figures rest on.
        limit_of: Whose limit it is about; None where none was given.
        card: Name of the card that the limit is on; None where it is on none.
        limit_bytes, limit_low_bytes, limit_high_bytes: The limit and its bounds; None without one.
        need_of: Which number is held against it.
        need_bytes, need_low_bytes, need_high_bytes: That number; None where it was not worked out.
        margin_bytes: The limit less the need; negative where it is too much.
        headline: The answer in one line.
        cautions: What makes the figures worse than they look, the worst first.
    """

    outcome: Outcome
    basis: Basis
    limit_of: LimitOf | None = None
    card: Text | None = None
    limit_bytes: Total | None = None
    limit_low_bytes: Total | None = None
    limit_high_bytes: Total | None = None
    need_of: NeedOf = NeedOf.ALLOCATED
    need_bytes: Total | None = None
    need_low_bytes: Total | None = None
    need_high_bytes: Total | None = None
    margin_bytes: Signed | None = None
    headline: Text
    cautions: tuple[Text, ...] = ()


class SourcedBytes(ReportRecord, frozen=True, kw_only=True):
    """Bytes that are known within bounds, and where they come from."""

    bytes: Total
    low_bytes: Total
    high_bytes: Total
    source: Text


class CardFit(ReportRecord, frozen=True, kw_only=True):
    """The verdict's numbers for a card, and what lies on the card beside the pool.

    Attributes:
        fits: The answer.
        card: The catalogue's name of the card.
        limit_bytes, limit_low_bytes, limit_high_bytes: TensorFlow's limit on it.
        needed_bytes, needed_low_bytes, needed_high_bytes: What the step needs.
        margin_bytes: The limit less the need.
        growth_pool_bytes: The pool with memory growth; None where the step does not run so.
        outside_pool: CUDA context, libraries, loaded kernels.
        limit_source: Where the limit comes from.
        says: The same in sentences.
    """

    fits: Fits
    card: Word
    limit_bytes: Total | None
    limit_low_bytes: Total | None
    limit_high_bytes: Total | None
    needed_bytes: Total | None
    needed_low_bytes: Total | None
    needed_high_bytes: Total | None
    margin_bytes: Signed | None
    growth_pool_bytes: Total | None
    outside_pool: SourcedBytes
    limit_source: Text
    says: tuple[Text, ...] = ()


class ReplayFailure(ReportRecord, frozen=True, kw_only=True):
    """The request that a replay under other settings could not serve, and what was there."""

    instant: Instant
    requested_bytes: Total
    in_use_bytes: Total
    pool_bytes: Total = 0
    free_bytes: Total
    largest_free_bytes: Total
    available_bytes: Signed = 0


class PoolRegion(ReportRecord, frozen=True, kw_only=True):
    """A region that the allocator took: how large, why, when, for what, and what was free before."""

    size_bytes: Total
    why: Text
    instant: Instant
    requested_bytes: Total
    free_bytes: Total
    largest_free_bytes: Total


class OtherSettings(ReportRecord, frozen=True, kw_only=True):
    """The recording replayed under settings of the allocator that the user asked about.

    Attributes:
        memory_limit_bytes, growth, fragmentation_fraction: The settings.
        fits: Whether every request could be served.
        peak_requested_bytes, peak_allocated_bytes, peak_pool_bytes: As far as it got.
        pool_timeline: The pool wherever it changes.
        failure: The request that could not be served; None where all were.
        regions: What the pool is made of, the first ones.
    """

    memory_limit_bytes: Total
    growth: bool
    fragmentation_fraction: float | None = None
    fits: bool
    peak_requested_bytes: Total = 0
    peak_allocated_bytes: Total = 0
    peak_pool_bytes: Total = 0
    pool_timeline: tuple[PoolChange, ...] = ()
    failure: ReplayFailure | None = None
    regions: tuple[PoolRegion, ...] = ()


class UnservedRequest(ReportRecord, frozen=True, kw_only=True):
    """The request for which the step ran out of memory.

    Attributes:
        instant: The last one before it.
        requested_bytes: What it asked for; None where the error does not say.
        in_use_bytes: What was allocated.
        memory_limit_bytes, free_bytes: The limit and what it leaves; None where it is not known.
    """

    instant: Instant
    requested_bytes: Total | None
    in_use_bytes: Total
    memory_limit_bytes: Total | None
    free_bytes: Total | None


class PoolFacts(Struct, frozen=True, kw_only=True):
    """What replays through the allocator's simulation told of a recording; None where none did.

    Attributes:
        replay_equals_trace: Whether the replay of a trace gave what TensorFlow wrote, to the end.
        replay_check: How the replay of a trace compares with it.
        failure_fits: The request that failed would be served after the trace's events.
        fits_limit: A prediction runs under its own limit.
        pool_bytes, pool_ever_bytes: The pool in the steady step, and at most.
        process_bytes: The pool and what lies on the card beside it.
        free_bytes, largest_free_bytes: In the pool at the allocated peak.
        pool_timeline: The pool wherever it changes.
        minimum_limit_bytes, safe_limit_bytes: The smallest limit that works; that from which all do.
        minimum_limit_parts, safe_limit_parts: What the two are made of.
        what_if: A replay under other settings.
        fit: What lies on the card beside the pool.
    """

    replay_equals_trace: bool | None = None
    replay_check: ReplayCheck | None = None
    failure_fits: bool = False
    fits_limit: bool = True
    pool_bytes: Total | None = None
    pool_ever_bytes: Total | None = None
    process_bytes: Total | None = None
    free_bytes: Total | None = None
    largest_free_bytes: Total | None = None
    pool_timeline: tuple[PoolChange, ...] = ()
    minimum_limit_bytes: Total | None = None
    safe_limit_bytes: Total | None = None
    minimum_limit_parts: LimitParts | None = None
    safe_limit_parts: LimitParts | None = None
    what_if: OtherSettings | None = None
    fit: CardFit | None = None


NO_FACTS: Final = PoolFacts()
"""Nothing was replayed."""
