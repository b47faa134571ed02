"""Findings about a step, and changes of the step that were tried."""

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
    """One finding about a step.

    Attributes:
        id: Stable name, such as ``retained-activations``.
        title: One line with the number of bytes.
        detail: The meaning and what to change.
        saves_bytes: Bytes that the change would save; None if unknown.
        saves_kind: ``requested`` or ``allocated`` bytes at the peak, or of the least memory
            ``limit``.
        evidence: Rows that prove it, with values by column.
    """

    id: Word
    severity: Severity
    title: Text
    detail: Text
    saves_bytes: Total | None = None
    saves_kind: Word = "requested"
    evidence: tuple[EvidenceRow, ...] = ()


class StepRemedy(ReportRecord, frozen=True, kw_only=True):
    """A change of the step, with a new capture and estimate.

    Attributes:
        id: Stable name, such as ``mixed-bfloat16``; a combination joins names with ``+``.
        saves_bytes: Reduction of the requested peak, between the medians over the schedules.
        saves_low_bytes, saves_high_bytes: Range between two runs with their own schedules.
        failed: Why the change cannot be applied; the figures are then None.
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
