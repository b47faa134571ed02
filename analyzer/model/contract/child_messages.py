"""What a child tells its command: a line of JSON a message, on the standard output it was started with.

Whatever else a process writes there, a line cut short or a message of a kind that is not known, is no
message and passed over: the child's end tells how it went. Error texts may hold bytes that are no text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct, ValidationError, convert, to_builtins

from analyzer.model.contract.device_figures import MeasuredStages
from analyzer.model.errors import AnalyzerError, FailureKind


class StageBegun(Struct, frozen=True, tag_field="message", tag="stage"):
    """What is being done now.

    Attributes:
        stage: In words.
        share: Of all that is to be done, 0 to 1.
    """

    stage: str
    share: float


class CaptureDone(Struct, frozen=True, tag_field="message", tag="done"):
    """The run folder is whole; the child's last word."""


class ChildFailed(Struct, frozen=True, tag_field="message", tag="failed"):
    """What went wrong; the child's last word.

    Attributes:
        error: What happened, one line.
        hint: What to do; empty where nothing is known to help.
        exit_code: A member of ``ExitCode``.
        kind: Why it failed, for decisions.
    """

    error: str
    hint: str
    exit_code: int
    kind: FailureKind = FailureKind.OTHER


class CardFigures(Struct, frozen=True, tag_field="message", tag="figures"):
    """What a process read of itself on a card; the last word of the one that measures a device."""

    figures: MeasuredStages


class ChildEnd(Struct, frozen=True, tag_field="message", tag="ended"):
    """How a child ended: written by its supervisor, which knows nothing but the standard library.

    Attributes:
        code: Its exit status, or less than 0 for the signal that ended it; None where not known.
        peak_rss_bytes: The most memory that it held itself.
    """

    code: int | None
    peak_rss_bytes: int = 0


class CopyEnd(Struct, frozen=True, tag_field="message", tag="copy ended"):
    """How a copy of a child ended that did one of several captures.

    Attributes:
        code, peak_rss_bytes: As of ``ChildEnd``.
    """

    code: int
    peak_rss_bytes: int = 0


Message: TypeAlias = StageBegun | CaptureDone | ChildFailed | CardFigures | CopyEnd | ChildEnd
"""Every message there is."""


def encode_message(message: Message) -> bytes:
    """Return a message as a line."""
    return (json.dumps(to_builtins(message)) + "\n").encode()


def parse_message(line: bytes) -> Message | None:
    """Return the message that a line is; None where it is none."""
    try:
        found: Message = convert(json.loads(line), Message)
    except (ValueError, RecursionError):
        return None
    return found


_Record = TypeVar("_Record", bound="Versioned")


class Versioned(Protocol):
    """A record that says its version."""

    @property
    def schema_version(self) -> int:
        """The version of the record."""


def write_message(path: Path, message: Versioned) -> None:
    """Write a message where the other process reads it: whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(to_builtins(message)), encoding="utf-8")
    unfinished.replace(path)


def read_message(path: Path, record: type[_Record], version: int) -> _Record:
    """Return what ``write_message`` wrote.

    Args:
        path: The file.
        record: The class of the message.
        version: The version that this process understands.

    Raises:
        AnalyzerError: the file is missing or damaged, or the other process is of another version.
    """
    try:
        plain = json.loads(path.read_bytes())
        found = plain.get("schema_version") if isinstance(plain, dict) else None
        if found != version:
            raise ValidationError(f"it has version {found}, and {version} is understood")
        return convert(plain, record)
    except (OSError, ValueError, RecursionError) as error:
        raise AnalyzerError(
            f"The message in {path} cannot be read: {error}.",
            hint="The command and its child must be of one installation of tf-memory-analyzer.",
        ) from None
