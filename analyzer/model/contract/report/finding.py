"""One thing worth knowing about a step, and one change of it that was tried."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import EvidenceRow, ReportRecord, Signed, Text, Total, Word


class Severity(Choice):
    """How much a finding matters."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth knowing, in plain words.

    Attributes:
        id: Stable name, such as ``retained-activations``.
        severity: How much it matters.
        title: One line with the bytes in it.
        detail: What it means and what to change.
        saves_bytes: Bytes that following it would save; None if unknown.
        saves_kind: Which bytes: ``requested`` or ``allocated`` ones at the peak, or those of the least
            memory ``limit``.
        evidence: Rows that show it: plain values by column.
    """

    id: Word
    severity: Severity
    title: Text
    detail: Text
    saves_bytes: Total | None = None
    saves_kind: Word = "requested"
    evidence: tuple[EvidenceRow, ...] = ()


class StepRemedy(ReportRecord, frozen=True, kw_only=True):
    """A change of the step, captured and estimated anew.

    Attributes:
        id: Stable name, such as ``mixed-bfloat16``; of a set, its parts' names with ``+`` between.
        title: What it does, in one line.
        code: What to write, in lines.
        costs: What it costs, in a few words; empty for nothing.
        saves_bytes: What the requested peak shrinks by, from the middle one of the ops' orders to the
            middle one with it; negative where it grows.
        saves_low_bytes, saves_high_bytes: Between which lies what one run with it takes less than a run
            without: each process takes an order of its own. None where no orders were drawn.
        requested_bytes, allocated_bytes: The peak with it.
        fits: Whether the step then fits the limit; None without one.
        failed: Why it cannot be applied here; then the other figures are None.
    """

    id: Word
    title: Text
    code: Text
    costs: Text = ""
    saves_bytes: Signed | None = None
    saves_low_bytes: Signed | None = None
    saves_high_bytes: Signed | None = None
    requested_bytes: Total | None = None
    allocated_bytes: Total | None = None
    fits: bool | None = None
    failed: Text = ""
