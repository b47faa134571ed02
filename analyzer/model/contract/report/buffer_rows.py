"""Rows of the report's tables of tensors and ops."""

from __future__ import annotations

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import Name, Text, Word
from analyzer.model.contract.report.figures import Instant, ReportRecord, Total


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
