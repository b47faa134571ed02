"""The errors of the package and their exit codes.

    AnalyzerError                 exit 1   a bug of the package
    ├── InputError                exit 2   a target, file or option is not usable
    │   ├── TargetError                    the model or step cannot be found or built
    │   └── TraceError                     the trace cannot be read or holds no memory events
    ├── LimitError                exit 3   a limit that the user set is exceeded
    ├── GrowthError               exit 4   memory grew compared to a baseline
    ├── StepOutOfMemory           exit 5   the traced step ran out of memory
    ├── CompilerUnavailable       exit 1   XLA's compiler for a card is missing or failed
    └── AccountingError           exit 1   a total is not the sum of its parts

A message is one line that says what is wrong; ``hint`` says what to do.
"""

from __future__ import annotations

from enum import IntEnum

from analyzer.model.choice import Choice


class ExitCode(IntEnum):
    """Exit status of the command."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    OVER_LIMIT = 3
    GREW = 4
    STEP_OUT_OF_MEMORY = 5
    INTERRUPTED = 130


class FailureKind(Choice):
    """Why a step failed. Callers decide by this, never by a message.

    OUT_OF_MEMORY: the device or the machine ran out of memory.
    TOO_LARGE: an op has more elements than TensorFlow's kernels can count (2**31).
    INVALID_SHAPE: TensorFlow or Keras refused the shapes (InvalidArgumentError, ValueError).
    FIXED_SIZE: the target fixes its batch size, so none can be chosen.
    CRASHED: the process died of a signal that its own code caused.
    KILLED: another process ended it (kill, a time limit); it may work the next time.
    EXITED: the user's code ended its own process.
    TIMED_OUT: the process did not end in time and was ended; this says nothing about memory.
    OTHER: any other error.
    """

    OUT_OF_MEMORY = "out-of-memory"
    TOO_LARGE = "too-large"
    INVALID_SHAPE = "invalid-shape"
    FIXED_SIZE = "fixed-size"
    CRASHED = "crashed"
    KILLED = "killed"
    EXITED = "exited"
    TIMED_OUT = "timed-out"
    OTHER = "other"


class AnalyzerError(Exception):
    """Base class of all errors that the package raises on purpose.

    Args:
        message: One line: what is wrong, with the file or option.
        hint: One line: what to do; empty if the message says it.
        kind: Why a step failed; None for the default of the class.
    """

    exit_code = ExitCode.BUG
    kind = FailureKind.OTHER

    def __init__(self, message: str, *, hint: str = "", kind: FailureKind | None = None) -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())
        if kind is not None:
            self.kind = kind

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InputError(AnalyzerError):
    """A target, a file or an option is not usable."""

    exit_code = ExitCode.BAD_INPUT


class TargetError(InputError):
    """The model or the step cannot be found, built or called."""


class TraceError(InputError):
    """A trace cannot be read or holds no memory events."""


class LimitError(AnalyzerError):
    """A limit that the user set is exceeded."""

    exit_code = ExitCode.OVER_LIMIT


class GrowthError(AnalyzerError):
    """Memory grew compared to the baseline that the user named."""

    exit_code = ExitCode.GREW


class StepOutOfMemory(AnalyzerError):  # noqa: N818 - describes the event
    """The traced step ran out of memory."""

    exit_code = ExitCode.STEP_OUT_OF_MEMORY
    kind = FailureKind.OUT_OF_MEMORY


class CompilerUnavailable(AnalyzerError):  # noqa: N818 - describes the event
    """XLA's compiler for a card is missing, refused the module, crashed or took too long.

    The caller catches it, uses another plan and shows the message.
    """


class AccountingError(AnalyzerError):
    """A total is not the sum of its parts: a bug of the package, never of the user."""
