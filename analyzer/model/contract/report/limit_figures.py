"""The pool, memory limits, the verdict, the card, and a replay under other settings."""

from typing import Literal

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import Instant, ReportRecord, Signed, Text, Total
from analyzer.model.ranges import BoundedBytes

Fits = (
    bool | Literal["may not"] | None
)  # whether the step fits; null without a limit or an answer


class Outcome(Choice):
    """The answer to the question whether the step fits."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    CANNOT_TELL = "cannot tell"
    NO_LIMIT = "no limit given"
    FAILED = "failed"


class LimitOf(Choice):
    """The origin of the limit: the card or the user."""

    CARD = "card"
    USER = "user"


class NeedOf(Choice):
    """Basis of the need's part in the pool."""

    LEAST_LIMIT = "least memory limit"
    ALLOCATED = "allocated peak"


class Basis(Choice):
    """Origin of the figures: a measured run, a prediction, or a run on a simulated card."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    SIMULATED_CARD = "simulated_card"


class LifePhase(Choice):
    """A part of the process' life, in order."""

    BEFORE_TRACE = "outside the trace"
    BUILDING = "building"
    FIRST_STEP = "first step"
    STEADY_STEP = "steady step"


class Need(ReportRecord, frozen=True, kw_only=True):
    """The largest memory that the process takes in its life, with its parts.

    ``total`` is the largest phase plus ``allocator`` plus ``beside_pool``. An unseen phase is None.
    """

    # TensorFlow's peak since process start, outside the trace
    before_trace: BoundedBytes | None = None
    building: BoundedBytes | None = (
        None  # until the first step: variables, initializers, inputs
    )
    first_step: BoundedBytes | None = None  # with the trials of algorithms that fit
    steady_step: (
        BoundedBytes  # of the later steps; of the only step; of a trace without steps
    )
    allocator: BoundedBytes  # rounding, unsplit chunks and fragmentation
    # CUDA context, libraries and loaded kernels, expected; None if the limit is for the pool alone,
    # or there is no card
    beside_pool: BoundedBytes | None = None
    skipped_bytes: Total = 0  # for trials that TensorFlow skips because they do not fit
    # of a program: TensorFlow's own peak (``get_memory_info``); the rest of its pool is fragmentation
    own_peak_bytes: Total | None = None

    @property
    def phases(self) -> dict[LifePhase, BoundedBytes]:
        """The phases that were seen, in order."""
        sizes = (self.before_trace, self.building, self.first_step, self.steady_step)
        return {
            phase: size
            for phase, size in zip(LifePhase, sizes, strict=True)
            if size is not None
        }

    @property
    def largest_phase(self) -> LifePhase:
        """The phase that decides; of equal ones the last."""
        sizes = self.phases
        return max(reversed(sizes), key=lambda phase: sizes[phase].bytes)

    @property
    def pool(self) -> BoundedBytes:
        """The lowest limit of TensorFlow's pool under which the process runs."""
        return BoundedBytes.largest(self.phases.values()) + self.allocator

    @property
    def total(self) -> BoundedBytes:
        """The need."""
        return self.pool if self.beside_pool is None else self.pool + self.beside_pool


class PoolChange(ReportRecord, frozen=True, kw_only=True):
    """The size of the pool from an instant on."""

    instant: Instant
    pool_bytes: Total


class FragmentationFigures(ReportRecord, frozen=True, kw_only=True):
    """Waste in the pool at the allocated peak, and memory limits.

    Fields of replays in the simulated allocator are None without a replay.
    """

    internal_bytes: Total  # ``rounding_bytes`` plus ``unsplit_bytes``
    rounding_bytes: Total = 0
    unsplit_bytes: Total = 0
    external_bytes: Total | None = None  # free bytes outside the largest free chunk
    risk: Literal["low", "medium", "high"] | None = None
    replay_equals_trace: bool | None = None
    free_bytes: Total | None = None  # in the pool at the allocated peak
    largest_free_bytes: Total | None = None
    minimum_limit_bytes: Total | None = (
        None  # the smallest limit under which a replay succeeds
    )
    safe_limit_bytes: Total | None = None  # every limit from this one on succeeds


class VerdictFigures(ReportRecord, frozen=True, kw_only=True):
    """Whether the step fits."""

    outcome: Outcome
    basis: Basis
    limit_of: LimitOf | None = None
    card: Text | None = None
    limit_bytes: Total | None = (
        None  # the card's memory, or the user's limit of the pool
    )
    limit_low_bytes: Total | None = None
    limit_high_bytes: Total | None = None
    need_of: NeedOf = NeedOf.ALLOCATED
    need_bytes: Total | None = None
    need_low_bytes: Total | None = None
    need_high_bytes: Total | None = None
    need: Need | None = None
    margin_bytes: Signed | None = (
        None  # limit minus need; negative if the step does not fit
    )
    processes: Total | None = None  # with this need, at once on the card
    headline: Text
    cautions: tuple[
        Text, ...
    ] = ()  # reasons to doubt the figures, the most important first

    @property
    def pool_limit_bytes(self) -> int | None:
        """The part of the limit that TensorFlow's pool may take; None without a limit."""
        beside = None if self.need is None else self.need.beside_pool
        if self.limit_bytes is None or beside is None:
            return self.limit_bytes
        return self.limit_bytes - beside.bytes


class ReplayFailure(ReportRecord, frozen=True, kw_only=True):
    """The request that failed in a replay under other settings, and the pool's state."""

    instant: Instant
    requested_bytes: Total
    free_bytes: Total
    largest_free_bytes: Total
    in_use_bytes: Total
    pool_bytes: Total = 0
    available_bytes: Signed = 0


class OtherSettings(ReportRecord, frozen=True, kw_only=True):
    """A replay under the user's settings of the allocator."""

    memory_limit_bytes: Total
    growth: bool
    fragmentation_fraction: float | None = None
    fits: bool
    peak_requested_bytes: Total = 0
    peak_allocated_bytes: Total = 0
    peak_pool_bytes: Total = 0
    pool_timeline: tuple[PoolChange, ...] = ()
    failure: ReplayFailure | None = None


class UnservedRequest(ReportRecord, frozen=True, kw_only=True):
    """The request that failed when the step ran out of memory, after ``instant``; None if unknown."""

    instant: Instant
    requested_bytes: Total | None
    in_use_bytes: Total
    memory_limit_bytes: Total | None
    free_bytes: Total | None
