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

from analyzer.model.choice import Choice


class ExitCode(IntEnum):
    """What the command's exit status means."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    OVER_LIMIT = 3
    GREW = 4
    STEP_OUT_OF_MEMORY = 5
    INTERRUPTED = 130


class FailureKind(Choice):
    """Why a step failed at some size; callers decide by this, never by a message.

    OUT_OF_MEMORY: the device or the machine ran out of memory.
    TOO_LARGE: an op has more elements than TensorFlow's kernels can count (2**31).
    INVALID_SHAPE: TensorFlow or Keras refused the shapes (InvalidArgumentError, ValueError).
    FIXED_SIZE: the target fixes its batch size, so none can be chosen.
    CRASHED: the process died of a signal that its own code caused.
    KILLED: someone else ended the process (kill, a time limit); it may work the next time.
    EXITED: the user's code ended its own process.
    OTHER: any other error.
    """

    OUT_OF_MEMORY = "out-of-memory"
    TOO_LARGE = "too-large"
    INVALID_SHAPE = "invalid-shape"
    FIXED_SIZE = "fixed-size"
    CRASHED = "crashed"
    KILLED = "killed"
    EXITED = "exited"
    OTHER = "other"


class AnalyzerError(Exception):
    """Base of every error raised on purpose.

    Args:
        message: One line: what happened, and to which file or option.
        hint: One line: what to do next; empty if the message says it all.
        kind: Why a step failed; None for the default of the class.
    """

    exit_code = ExitCode.BUG
    kind = FailureKind.OTHER

    def __init__(self, message: str, *, hint: str = "", kind: FailureKind | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind
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
    kind = FailureKind.OUT_OF_MEMORY


class CompilerUnavailable(AnalyzerError):  # noqa: N818 - reads as what happened
    """XLA's compiler for a card is not installed, refused the module, died or took too long.

    Whoever asks for a plan catches it, falls back to another plan and shows the message.
    """


class AccountingError(AnalyzerError):
    """A total is not the sum of its parts: a bug of ours, never the user's."""
