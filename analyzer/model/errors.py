"""What can go wrong, and the exit code each thing has.

    AnalyzerError                 exit 1   ours: a bug, reported as one
    ├── InputError                exit 2   a target, file or option that cannot be used
    │   ├── TargetError                    the model or step cannot be found or built
    │   └── TraceError                     the trace cannot be read or holds nothing to read
    ├── LimitError                exit 3   a limit that the user set is exceeded
    ├── GrowthError               exit 4   grew against a baseline
    ├── StepOutOfMemory           exit 5   the traced step itself ran out of memory
    ├── CompilerUnavailable       exit 1   XLA's compiler for a card is missing or refused: fall back
    └── AccountingError           exit 1   a total is not the sum of its parts

Every message is one line that says what happened and to what; ``hint`` says what to do next.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit status means."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    OVER_LIMIT = 3
    GREW = 4
    STEP_OUT_OF_MEMORY = 5
    INTERRUPTED = 130


class AnalyzerError(Exception):
    """Base of every error raised on purpose.

    Args:
        message: One line: what happened, and to which file or option.
        hint: One line: what to do next; empty where the message says it all.
    """

    exit_code = ExitCode.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InputError(AnalyzerError):
    """A target, a file or an option that cannot be used."""

    exit_code = ExitCode.BAD_INPUT


class TargetError(InputError):
    """The model or the step cannot be found, built or called."""


class TraceError(InputError):
    """A trace that cannot be read, or that holds no memory events."""


class LimitError(AnalyzerError):
    """A limit that the user set is exceeded."""

    exit_code = ExitCode.OVER_LIMIT


class GrowthError(AnalyzerError):
    """Memory grew against the baseline that the user named."""

    exit_code = ExitCode.GREW


class StepOutOfMemory(AnalyzerError):  # noqa: N818 - reads as what happened
    """The traced step itself ran out of memory."""

    exit_code = ExitCode.STEP_OUT_OF_MEMORY


class CompilerUnavailable(AnalyzerError):  # noqa: N818 - reads as what happened
    """XLA's compiler for a card is not installed, refused the module, died or took too long.

    Whoever asks for a plan catches it, falls back to another plan and shows the message.
    """


class AccountingError(AnalyzerError):
    """A total is not the sum of its parts: a bug of ours, never the user's."""
