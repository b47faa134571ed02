"""What a report is about: the recording's kind, its target, its device, and how the step is run."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.choice import Choice
from analyzer.model.contract.fields import Name, ReportRecord, Text, Total, Word
from analyzer.model.errors import ExitCode


class Kind(Choice):
    """Whether the numbers were predicted, measured, or TensorFlow's own on a card that is not there."""

    ESTIMATE = "estimate"
    TRACE = "trace"
    PHANTOM = "phantom"

    @property
    def ran(self) -> bool:
        """Whether TensorFlow ran the step, so that there are events of its allocator."""
        return self is not Kind.ESTIMATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device whose memory is counted.

    Attributes:
        kind: ``cpu`` or ``gpu``.
        name: Its name, or the host's.
        memory_limit_bytes: What its allocator may use; None where that is not known.
    """

    kind: Word
    name: Name
    memory_limit_bytes: Total | None = None


class ReportTarget(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for.

    Attributes:
        text: As the user named it.
        kind: Which form of target that is.
        name: A short name.
        trace: Path of the trace file; left out for an estimate.
    """

    text: Text = ""
    kind: Word = ""
    name: Name = ""
    trace: Text = ""


class ReportError(ReportRecord, frozen=True, kw_only=True, omit_defaults=True):
    """How the step failed.

    Attributes:
        type: Class of the error.
        message: What it says.
        exit_code: The command's exit code for it.
        where: ``file:line`` of the user's code; empty where not known, left out where it has none.
    """

    type: Name
    message: Text
    exit_code: ExitCode = ExitCode.BAD_INPUT
    where: Name | None = None


class AssumedSetting(ReportRecord, frozen=True, kw_only=True):
    """What was taken for what a library of a card that is not there would say.

    Attributes:
        name: What ``--assume NAME=N`` calls it.
        what: What it is.
        value: What was taken: bytes, or numbers.
        usual: What is taken where nothing is said.
        most: The most that TensorFlow would accept.
        is_bytes: Whether it counts bytes.
        share_bytes: Of it at the requested peak.
        source: Where the figures come from.
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
    """One card's memory, where a step ran on several.

    Attributes:
        number: TensorFlow's number of the card.
        allocator: The name of its allocator.
        card: Its name in the catalogue; empty where it is not known.
        requested_bytes, allocated_bytes: The steady step's peaks on it.
        allocated_ever_bytes: Its peak over the whole recording.
        memory_limit_bytes: Its allocator's limit; None where not known.
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
    """That TensorFlow ran on cards that were not there.

    Attributes:
        says: The same in a sentence.
        cards: Their names.
        assumed: What was taken to be so without a card, a sentence each.
        settings: What was taken for what NVIDIA's libraries would say.
    """

    says: Text
    cards: tuple[Word, ...] = ()
    assumed: tuple[Text, ...] = ()
    settings: tuple[AssumedSetting, ...] = ()
