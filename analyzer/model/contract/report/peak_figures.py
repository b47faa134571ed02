"""The peaks, and the tensors and ops at the peak."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import (
    Instant,
    Name,
    Picoseconds,
    ReportRecord,
    Text,
    Total,
    Word,
)


class PeakFigures(ReportRecord, frozen=True, kw_only=True):
    """The peak of the steady step.

    Attributes:
        requested_bytes: Maximum of the bytes that live tensors requested.
        allocated_bytes: Maximum of the bytes of chunks in use; possibly at another instant.
        pool_bytes: Size of the allocator's pool; None if the replay failed.
        process_bytes: The pool and the process' other memory on the card.
        op, layer, source: The op whose request makes the requested peak; empty if unknown.
        time_s: Of the allocated peak after the first event; ``time_ps`` on the trace's clock.
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
    """The peak of the whole recording.

    Attributes:
        first_step_only_bytes: Only the first step needs them, such as trials of algorithms.
        since_start_bytes: TensorFlow's own peak since the start of the process, maybe before the
            trace.
    """

    requested_bytes: Total
    allocated_bytes: Total
    pool_bytes: Total | None = None
    phase: Word = ""
    first_step_only_bytes: Total = 0
    since_start_bytes: Total | None = None


class StepPeak(ReportRecord, frozen=True, kw_only=True):
    """The peak of one step.

    Attributes:
        first_instant, last_instant: Its events; ``last_instant`` is smaller if it has none.
    """

    index: Total
    number: Picoseconds | None = None
    requested_bytes: Total
    allocated_bytes: Total
    duration_s: float | None = None
    first_instant: Instant = 0
    last_instant: Instant = -1


class LiveBytes(ReportRecord, frozen=True, kw_only=True):
    """Requested and allocated bytes at one instant."""

    requested_bytes: Total = 0
    allocated_bytes: Total = 0


class CategoryBytes(ReportRecord, frozen=True, kw_only=True):
    """Requested bytes of each ``Category``."""

    parameter: Total = 0
    optimizer_state: Total = 0
    gradient: Total = 0
    activation: Total = 0
    input: Total = 0
    temporary: Total = 0
    workspace: Total = 0
    constant: Total = 0
    unattributed: Total = 0

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> CategoryBytes:
        """Return the record of a mapping from category to bytes."""
        return cls(**{category.value: sizes.get(category.value, 0) for category in Category})

    def by_category(self) -> dict[str, int]:
        """Return a mapping from category to bytes, in the order of ``Category``."""
        return {category.value: getattr(self, category.value) for category in Category}


class LayerBytes(CategoryBytes, frozen=True, kw_only=True):
    """Requested bytes of one layer at the peak, by category and in total."""

    layer: Name
    total_bytes: Total


class BufferRow(ReportRecord, frozen=True, kw_only=True):
    """A buffer. Texts are empty if unknown.

    Attributes:
        name: Its variable, tensor, op or role.
    """

    name: Name
    op: Name = ""
    op_type: Word = ""
    layer: Name = ""
    source: Name = ""
    category: Category
    role: Text = ""
    instruction: Name = ""
    dtype: Word = ""
    shape: Word = ""
    requested_bytes: Total
    allocated_bytes: Total


class TensorAtPeak(BufferRow, frozen=True, kw_only=True):
    """A tensor that is alive at the requested peak, its lifetime and the reason."""

    born: Instant
    dies: Instant
    why_alive: Text = ""


class RetainedTensor(BufferRow, frozen=True, kw_only=True):
    """An activation that is alive at the peak until the backward pass uses it.

    Attributes:
        waits_for: The op that reads it last.
        byte_seconds: Requested bytes times lifetime.
    """

    waits_for: Name = ""
    why_alive: Text = ""
    held_s: float | None = None
    byte_seconds: float | None = None
    born: Instant
    dies: Instant


class OpBytes(ReportRecord, frozen=True, kw_only=True):
    """The requests of one op in the steady step.

    Attributes:
        category: The category of most of its bytes.
        requested_bytes, allocated_bytes: Sums over the step.
        temporary_bytes: The requested part that is scratch memory of the op.
        alive_at_peak_bytes: The requested part that is alive at the peak.
    """

    name: Name
    type: Word = ""
    layer: Name = ""
    source: Name = ""
    category: Category
    allocations: Total = 0
    requested_bytes: Total
    allocated_bytes: Total
    temporary_bytes: Total
    alive_at_peak_bytes: Total


class UnmodelledType(ReportRecord, frozen=True, kw_only=True):
    """An op type without a memory rule, the number of such ops and the bytes of their results."""

    op_type: Name
    count: Total
    bytes: Total | None = None
