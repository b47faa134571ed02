"""Messages of child processes (lines or files of JSON), and figures of their memory."""

import json
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec import Struct, convert, to_builtins

from analyzer.model.contract.fields import Bytes, Name
from analyzer.model.errors import AnalyzerError, FailureKind


class StageBegun(Struct, frozen=True, tag_field="message", tag="stage"):
    """The child begins a stage."""

    stage: str


class SizeRun(Struct, frozen=True, kw_only=True, tag_field="message", tag="size"):
    """The answer of a run at one size."""

    peak_bytes: int | None = None  # of the card's allocator; None if the run failed
    fixed_bytes: int = 0  # in use between steps
    kind: FailureKind | None = None  # why it failed
    detail: str = ""  # the error
    is_open: bool = False  # whether the same process takes another size


class CaptureDone(Struct, frozen=True, tag_field="message", tag="done"):
    """The run folder is complete. The last message of a successful capture."""


class ChildFailed(Struct, frozen=True, tag_field="message", tag="failed"):
    """The child failed. Its last message."""

    error: str
    hint: str
    exit_code: int
    kind: FailureKind = FailureKind.OTHER


class CopyEnd(Struct, frozen=True, tag_field="message", tag="copy ended"):
    """How a fork of a child ended that made one of several captures."""

    code: int  # exit status, or minus the number of a signal


Message: TypeAlias = StageBegun | SizeRun | CaptureDone | ChildFailed | CopyEnd


def encode_message(message: Message) -> bytes:
    """Return a message as a line of JSON."""
    return (json.dumps(to_builtins(message)) + "\n").encode()


def parse_message(line: bytes) -> Message | None:
    """Return the message in a line, or None if it holds none."""
    try:
        message: Message = convert(json.loads(line), Message)
    except (ValueError, RecursionError):
        return None

    return message


_Record = TypeVar("_Record")


def write_message(path: Path, message: object) -> None:
    """Write a record as a JSON file, atomically."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(to_builtins(message)), encoding="utf-8")
    unfinished.replace(path)


def read_message(path: Path, record: type[_Record]) -> _Record:
    """Read a file that ``write_message`` wrote, or raise AnalyzerError."""
    try:
        return convert(json.loads(path.read_bytes()), record)
    except (OSError, ValueError, RecursionError) as error:
        raise AnalyzerError(
            f"The message in {path} cannot be read: {error}.",
            hint="The command and its child must be of one installation of tf-memory-analyzer.",
        ) from None


class AllocatorFigures(Struct, frozen=True, kw_only=True):
    """One of TensorFlow's GPUs (a logical device) and its allocator."""

    device: Name  # such as ``GPU:0``
    card_uuid: Name
    card_name: Name
    in_use_bytes: Bytes
    peak_in_use_bytes: Bytes
    limit_bytes: Bytes  # of the pool
    grows: bool

    @property
    def pool_bytes(self) -> int:
        """Size of a pool that does not grow: its limit, from the first tensor on."""
        return self.limit_bytes if self.peak_in_use_bytes else 0
