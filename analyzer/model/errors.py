"""The errors of the package: one line says what is wrong, ``hint`` says what to do."""

import difflib
from collections.abc import Sequence
from enum import IntEnum

from analyzer.model.contract.fields import Choice


def suggest_names(name: str, names: Sequence[str]) -> str:
    """Return a question with the names closest to ``name``; empty if none is close."""
    alike = [one for one in names if one[:4] == name[:4]] or list(names)
    parts = [one for one in names if name.lower() in one.lower().split("-")]
    parts = parts or [one for one in names if name and one.startswith(name)]
    close = parts[:3] or difflib.get_close_matches(name, alike, n=3, cutoff=0.4)

    if close:
        return f"Did you mean {' or '.join(close)}?"

    return ""


USAGE_STATUS = 2  # exit status of a program that prints its usage (argparse, click)


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
    """Why a step failed. Callers decide by this, never by a message."""

    OUT_OF_MEMORY = "out-of-memory"  # of the device or the machine
    TOO_LARGE = "too-large"  # an op has more elements than TensorFlow's kernels can count (2**31)
    INVALID_SHAPE = "invalid-shape"  # TensorFlow or Keras refused the shapes
    FIXED_SIZE = "fixed-size"  # the target fixes its batch size
    CRASHED = "crashed"  # the process died of a signal that its own code caused
    # by another process (kill, a time limit); it may work the next time
    KILLED = "killed"
    EXITED = "exited"  # the user's code ended its own process
    TIMED_OUT = "timed-out"  # ended after a time limit; this says nothing about memory
    # this TensorFlow cannot run the step on simulated cards
    NO_CARD = "no-simulated-card"
    NOT_COMPILED = "not-compiled"  # XLA cannot compile the step for this device
    OTHER = "other"


class AnalyzerError(Exception):
    """Base class of all errors that the package raises on purpose; see ``FailureKind``."""

    exit_code = ExitCode.BUG
    kind = FailureKind.OTHER

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        kind: FailureKind | None = None,
    ) -> None:
        super().__init__(message)
        self.message = " ".join(message.split())
        self.hint = " ".join(hint.split())

        if kind is not None:
            self.kind = kind

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def describe_import_error(error: BaseException) -> str:
    """Return the reason of a failed import in one line, without a period."""
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
    full = "failed to map segment" in reason  # glibc's dl-load.c, if mmap fails
    if full:
        return f"{reason}: too little memory, see `ulimit -v`"

    return reason


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


class AccountingError(AnalyzerError):
    """A total is not the sum of its parts: a bug of the package, never of the user."""
