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
        process_bytes: The pool and the process' other memory on the card; None without a card.
        op, layer, source: The op whose request makes the requested peak; empty if unknown.
        step: Index of the step; None if the recording has no steps.
        time_s: Time of the allocated peak after the first event; None in a prediction.
        time_ps: The same time on the trace's clock.
        requested_time_s: Time of the requested peak after the first event.
        instant: Instant of the requested peak.
        allocated_instant: Instant of the allocated peak.
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
        requested_bytes, allocated_bytes: The two peaks.
        pool_bytes: Maximum size of the pool; None if unknown.
        phase: The part of the run in which it occurs.
        first_step_only_bytes: Part of the requested bytes that only the first step needs, such as
            trials of algorithms.
        since_start_bytes: TensorFlow's own peak of allocated bytes since the start of the process, which
            may be before the recording; None in a prediction or if the trace has no such counter.
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
        index: 0 for the first step of the recording.
        number: The training program's step number; None if it gives none.
        requested_bytes, allocated_bytes: The two peaks.
        duration_s: Duration in seconds; None in a prediction.
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
        name: Its variable, tensor, op or role, the first that is known.
        op: The op that requested it.
        op_type: Type of that op.
        layer: Path of its layer.
        source: ``file:line`` of the user's code that made the op.
        category: Its category at that instant.
        role: More specific than the category.
        instruction: The HLO instruction that makes it, in a compiled step.
        dtype: Element type.
        shape: Such as ``[32,128]``.
        requested_bytes: Bytes that the tensor requested.
        allocated_bytes: Bytes of its chunk.
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
        waits_for: The op that reads it last; empty if unknown.
        why_alive: The same in words.
        held_s: Lifetime in seconds; None if unknown.
        byte_seconds: Requested bytes times lifetime; None if unknown.
        born, dies: Its lifetime as instants.
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
        name, type, layer, source: The op; empty if unknown.
        category: The category of most of its bytes.
        allocations: Number of requested buffers.
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
