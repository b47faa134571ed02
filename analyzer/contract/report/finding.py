"""One thing worth knowing about a step."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.choice import Choice
from analyzer.contract.fields import Text, Word
from analyzer.contract.report.figures import EvidenceRow, Total


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
