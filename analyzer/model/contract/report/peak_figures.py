"""The peak, the peak of each step, what was there before, and what the bytes were for."""

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


class BufferRow(ReportRecord, frozen=True, kw_only=True):
    """A buffer; a text is empty where it is not known.

    Attributes:
        name: Its variable, its tensor, its op or its role, whichever is known first.
        op: The op that asked for it.
        op_type: Type of that op.
        layer: Path of the layer it belongs to.
        source: ``file:line`` of the user's code that made the op.
        category: What it is for at that instant.
        role: The same finer, in words.
        instruction: HLO instruction that makes it, inside of a compiled step.
        dtype: Element type.
        shape: Such as ``[32,128]``.
        requested_bytes: What the tensor asked for.
        allocated_bytes: The chunk that holds it.
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
    """What is alive at the requested peak, from when to when, and why."""

    born: Instant
    dies: Instant
    why_alive: Text = ""


class RetainedTensor(BufferRow, frozen=True, kw_only=True):
    """An activation that is alive at the peak and waits for the backward pass.

    Attributes:
        waits_for: The op that reads it last; empty where not known.
        why_alive: The same in words.
        held_s: Seconds from its birth to its death; None where no time is known.
        byte_seconds: Requested bytes x seconds; None where no time is known.
        born, dies: From when to when it is alive.
    """

    waits_for: Name = ""
    why_alive: Text = ""
    held_s: float | None = None
    byte_seconds: float | None = None
    born: Instant
    dies: Instant


class OpBytes(ReportRecord, frozen=True, kw_only=True):
    """What one op asked for in the steady step.

    Attributes:
        name, type, layer, source: The op; empty where not known.
        category: That of most of its bytes.
        allocations: How many buffers it asked for.
        requested_bytes, allocated_bytes: Summed over the step.
        temporary_bytes: The requested part that is neither a tensor of the graph nor kept.
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
    """An op type without a rule: how many ops of it ran, and the bytes of their results."""

    op_type: Name
    count: Total
    bytes: Total | None = None
