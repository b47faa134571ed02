"""What the end of the child means, in one line: whose fault it was, and the words that tell.

A child that can still speak says itself what went wrong. One that died in TensorFlow's C++, in a
library of the user's or by a signal leaves only a status and its log.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analyzer.capture.process.memory_shortage import HostMemory
from analyzer.capture.run.source_frames import is_library, shown
from analyzer.model.contract.child_messages import ChildEnd
from analyzer.model.errors import AnalyzerError, InputError, StepOutOfMemory, TargetError
from analyzer.model.units import format_bytes

_LONGEST: Final = 300  # characters of the log that fit one line
_TAIL_BYTES: Final = 256 << 10  # of the log, in which the reason of an ending is looked for
_NEAR: Final = 0.8
"""Share of the memory there is from which on a killed process is likely to have been killed for it."""

_UNKNOWN_FLAG: Final = "Unknown flag"  # "in XLA_FLAGS": xla/parse_flags_from_env.cc
_LOGGED: Final = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old>[IWEF]) |(?P<new>[IWEF])\d{4} )"
    r"(?P<head>[^\]]*)\] ?(?P<text>.*)"
)
"""A line of TensorFlow's log, in the form of ``tsl/platform/default/logging.cc`` or of Abseil's."""
_OF_THE_LOG: Final = (
    "WARNING: All log messages before absl",
    "To enable the following instructions",
    "If the cause is memory fragmentation",
    "Current allocation summary follows",
    "<allocator contains no memory>",
    "Hint: If you want to see a list of allocated tensors when OOM happens",
)
_FIGURE: Final = re.compile(r"[A-Z]\w+: +[\d.]+(?:[KMGT]i)?B?$")
"""A line of an allocator's statistics, which is logged without a head: ``MaxInUse:   49.35MiB``."""
_RAN_OUT: Final = "ran out of memory trying to allocate"  # BFCAllocator::AllocateRawInternal
_NO_TENSOR: Final = "OOM when allocating tensor"  # OpKernelContext::allocate_tensor
_PYTHON_DIED: Final = "Fatal Python error: "  # faulthandler's first line; where it was comes below
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
_NO_MEMORY: Final = ("std::bad_alloc", "MemoryError", "Cannot allocate memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A child's end without a word of its own.

    Attributes:
        target: The target as the user wrote it.
        stage: What the child was doing.
        child: Its status and the memory that it held.
        before: The system's word on host memory before it was started.
        after: The same after its end.
        log: The end of what it printed.
        kept_log: Where its log is to be found; None where it could not be kept.
    """

    target: str
    stage: str
    child: ChildEnd
    before: HostMemory
    after: HostMemory
    log: str
    kept_log: Path | None = None


def error_of(end: Ending) -> AnalyzerError:
    """Return the error that tells what happened."""
    word = telling_line(end.log)
    if _UNKNOWN_FLAG in word:
        return InputError(
            f"TensorFlow ends itself: {word[word.index(_UNKNOWN_FLAG) :]}.",
            hint="Correct the environment variable XLA_FLAGS.",
        )
    where = f"{_place(end.log)}while {end.stage}"
    said = f": {word}" if word else "."
    hint = f"All that it printed: {end.kept_log}" if end.kept_log else ""
    code = end.child.code
    if code == -signal.SIGKILL:
        return _killed(end, hint)
    if any(sign in word for sign in _NO_MEMORY):
        return StepOutOfMemory(f"The process ran out of host memory {where}{said}", hint=hint)
    if code is None:
        return TargetError(
            f"The process of {end.target} was ended from outside {where}.", hint=hint
        )
    if code < 0 and (
        _RAN_OUT in word or _NO_TENSOR in word
    ):  # oneDNN's convolution does not survive it (TensorFlow 2.21)
        kept = f"analyze oom {end.kept_log} explains it." if end.kept_log else ""
        return StepOutOfMemory(
            f"{end.target} ran out of memory {where}, and TensorFlow died of it "
            f"({signal_name(-code)}): {word}",
            hint=kept,
        )
    if code < 0:
        return TargetError(
            f"The process of {end.target} died of {signal_name(-code)} {where}{said}", hint=hint
        )
    return TargetError(
        f"{end.target} ended its own process with exit code {code} {where}"
        + (f"; it last printed: {word}" if word else " (os._exit, or a library that does so)."),
        hint=hint,
    )


def _killed(end: Ending, hint: str) -> AnalyzerError:
    """Tell a process that the system ended for want of memory from one that somebody killed."""
    smaller = "Try a smaller --batch-size."
    if end.after.kills > end.before.kills:
        return StepOutOfMemory(
            f"The system killed the process while {end.stage}: it ran out of host memory.",
            hint=smaller,
        )
    held, limit = end.child.peak_rss_bytes, end.after.limit_bytes
    if limit and held > _NEAR * limit:
        return StepOutOfMemory(
            f"The process was killed (SIGKILL) while {end.stage}, likely for want of host memory: it "
            f"held {format_bytes(held)} of {format_bytes(limit)}.",
            hint=smaller,
        )
    return TargetError(
        f"The process of {end.target} was killed (SIGKILL) while {end.stage}, and not for want of "
        f"memory as far as the system tells: by kill -9, a job's time limit or the like.",
        hint=hint,
    )


def signal_name(number: int) -> str:
    """Return a signal's name and what it means: SIGSEGV (Segmentation fault)."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    meaning = signal.strsignal(number)
    return f"{name} ({meaning})" if meaning else name


def tail_of(log: Path) -> str:
    """Return the end of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def telling_line(log: str) -> str:
    """Return the line that tells best why the process ended; empty where none does.

    TensorFlow's last word where it was one that ends the process (a failed check), else the last line
    that is none of TensorFlow's log nor of Python's traceback: a missing CUDA driver ends nothing. Where
    there is none such, that an allocator ran out of memory, which some kernels do not survive.
    """
    printed = log.partition(_PYTHON_DIED)[0].splitlines()
    own = ran_out = ""
    for number, line in reversed(list(enumerate(printed))):
        found = _LOGGED.match(line)
        if found is not None:
            if "F" in (found["old"], found["new"]):
                return _short(_ran_out_before(printed[:number], found["head"]) or found["text"])
            if _RAN_OUT in found["text"]:
                ran_out = ran_out or found["text"]
        elif not own and line.strip() and not _is_continued(line):
            own = line
    return _short(own or ran_out)


def _ran_out_before(printed: Sequence[str], head: str) -> str:
    """Return what a thread said of an allocator just before a failed check; empty where it did not.

    A check that a buffer is there fails where it could not be had: ``DCHECK_NOTNULL`` in ``mkl_util.h``.

    Args:
        printed: The lines before that of the check.
        head: What stands before the check's text: time, thread, file and line.
    """
    thread, no_tensor = head.split()[-2:-1], ""
    for line in reversed(printed):
        found = _LOGGED.match(line)
        if found is None or found["head"].split()[-2:-1] != thread:
            continue
        if _RAN_OUT in found["text"]:
            return found["text"]
        if _NO_TENSOR in found["text"]:
            no_tensor = no_tensor or found["text"]
        elif "bfc_allocator" not in found["head"]:
            break
    return no_tensor


def _is_continued(line: str) -> bool:
    """Say whether a line without a head belongs to a message of TensorFlow's or to a traceback."""
    return line.startswith((" ", "\t", *_OF_THE_LOG)) or _FIGURE.match(line) is not None


def _place(log: str) -> str:
    """Return ``at file:line `` of the user's own code where Python told where it died."""
    for file, line in _FRAME.findall(log.partition(_PYTHON_DIED)[2]):
        if not is_library(file):
            return f"at {shown(file)}:{line} "
    return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
