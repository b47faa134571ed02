"""The subject of a report: kind, target, device, cards and errors."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import Name, ReportRecord, Text, Total, Word
from analyzer.model.errors import ExitCode


class Kind(Choice):
    """Whether the figures are predicted, measured, or measured on a simulated card."""

    ESTIMATE = "estimate"
    TRACE = "trace"
    PHANTOM = "phantom"

    @property
    def ran(self) -> bool:
        """Whether TensorFlow ran the step, so that there are allocator events."""
        return self is not Kind.ESTIMATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device whose memory is counted."""

    kind: Word
    name: Name
    memory_limit_bytes: Total | None = None


class ReportTarget(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The target of the command: the user's text, its kind and a short name.

    ``trace`` is the path of the trace file; it is absent in an estimate.
    """

    text: Text = ""
    kind: Word = ""
    name: Name = ""
    trace: Text = ""


class ReportError(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """How the step failed.

    Attributes:
        where: ``file:line`` of the user's code; empty if unknown, absent if the error has no
            place.
    """

    type: Name
    message: Text
    exit_code: ExitCode = ExitCode.BAD_INPUT
    where: Name | None = None


class AssumedSetting(ReportRecord, frozen=True, kw_only=True):
    """An assumption about the answers of NVIDIA's libraries on a simulated card.

    Attributes:
        share_bytes: Bytes at the requested peak that result from it.
    """

    name: Word
    what: Text
    value: Total
    usual: Total
    most: Total
    is_bytes: bool
    share_bytes: Total
    source: Text


class CardUse(ReportRecord, frozen=True, kw_only=True):
    """The memory of one of several cards.

    Attributes:
        requested_bytes, allocated_bytes: Peaks of the steady step.
        is_shown: Whether the report's figures are this card's.
    """

    number: Total
    allocator: Name
    card: Word
    requested_bytes: Total
    allocated_bytes: Total
    allocated_ever_bytes: Total
    memory_limit_bytes: Total | None
    is_shown: bool


class PhantomNotice(ReportRecord, frozen=True, kw_only=True):
    """A run on simulated cards."""

    says: Text
    cards: tuple[Word, ...] = ()
    assumed: tuple[Text, ...] = ()
    settings: tuple[AssumedSetting, ...] = ()
