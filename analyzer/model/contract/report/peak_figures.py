"""The peak, the peak of each step, what was there before, and what the bytes were for."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import Name, Word
from analyzer.model.contract.report.figures import Instant, Picoseconds, ReportRecord, Total


class PeakFigures(ReportRecord, frozen=True, kw_only=True):
    """The peak of the steady step.

    Attributes:
        requested_bytes: The most that live tensors asked for at once.
        allocated_bytes: The most bytes of chunks handed out at once; perhaps at another instant.
        pool_bytes: What the allocator took for them; None where it could not be replayed.
        process_bytes: The pool and what the process holds beside it on a card; None without one.
        op, layer, source: Who asked for the buffer that makes the requested peak; empty where not known.
        step: Index of the step; None where the recording has none.
        time_s: Time of the allocated peak since the first event; None in a prediction.
        time_ps: The same on the trace's clock.
        requested_time_s: Time of the requested peak since the first event.
        instant: Of the requested peak.
        allocated_instant: Of the allocated peak.
    """

    requested_bytes: Total
    allocated_bytes: Total
    pool_bytes: Total | None = None
    process_bytes: Total | None = None
    op: Name | None = ""
    layer: Name | None = ""
    source: Name | None = ""
    step: Total | None = None
    time_s: float | None = None
    time_ps: Picoseconds | None = None
    requested_time_s: float | None = None
    instant: Instant
    allocated_instant: Instant


class PeakEver(ReportRecord, frozen=True, kw_only=True):
    """The peak of the whole recording, and when it is in words.

    Attributes:
        requested_bytes, allocated_bytes: The two peaks.
        pool_bytes: The pool at most; None where not known.
        phase: When it is.
        first_step_only_bytes: Of the requested ones what no later step asks for, such as trials.
    """

    requested_bytes: Total
    allocated_bytes: Total
    pool_bytes: Total | None = None
    phase: Word = ""
    first_step_only_bytes: Total = 0


class StepPeak(ReportRecord, frozen=True, kw_only=True):
    """The peak of one step.

    Attributes:
        index: 0 for the first step of the recording.
        number: The step number that the training program gave; None where it gave none.
        requested_bytes, allocated_bytes: Its two peaks.
        duration_s: Seconds it took; None in a prediction.
        first_instant, last_instant: Its events; ``last_instant`` is less where it has none.
    """

    index: Total
    number: Picoseconds | None = None
    requested_bytes: Total
    allocated_bytes: Total
    duration_s: float | None = None
    first_instant: Instant = 0
    last_instant: Instant = -1


class LiveBytes(ReportRecord, frozen=True, kw_only=True):
    """Bytes at one instant, by both counts."""

    requested_bytes: Total = 0
    allocated_bytes: Total = 0


class CategoryBytes(ReportRecord, frozen=True, kw_only=True):
    """Requested bytes for each ``Category``."""

    parameter: Total = 0
    optimizer_state: Total = 0
    gradient: Total = 0
    activation: Total = 0
    input: Total = 0
    temporary: Total = 0
    constant: Total = 0
    unattributed: Total = 0

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> CategoryBytes:
        """Return the bytes that a mapping by category's text holds."""
        return cls(**{category.value: sizes.get(category.value, 0) for category in Category})

    def by_category(self) -> dict[str, int]:
        """Return category -> bytes, in the order in which categories are listed."""
        return {category.value: getattr(self, category.value) for category in Category}


class LayerBytes(CategoryBytes, frozen=True, kw_only=True):
    """Requested bytes of one layer that are alive at the peak, by category and in all."""

    layer: Name
    total_bytes: Total
