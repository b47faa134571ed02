"""What a child tells its command: a line of JSON a message, on the standard output it was started with.

Whatever else a process writes there, a line cut short or a message of a kind that is not known, is no
message and passed over: the child's end tells how it went. Error texts may hold bytes that are no text.
"""

from __future__ import annotations

import json
from typing import TypeAlias

from msgspec import Struct, convert, to_builtins

from analyzer.model.contract.device_figures import MeasuredStages


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
    """

    error: str
    hint: str
    exit_code: int


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


def message_line(message: Message) -> bytes:
    """Return a message as a line."""
    return (json.dumps(to_builtins(message)) + "\n").encode()


def message_in(line: bytes) -> Message | None:
    """Return the message that a line is; None where it is none."""
    try:
        found: Message = convert(json.loads(line), Message)
    except (ValueError, RecursionError):
        return None
    return found
