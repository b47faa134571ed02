"""The error for a child process that ended without reporting one: its cause, in one line.

A child that died in C++, in a library or by a signal leaves only an exit status and its log. Linux
counts the processes that it killed because memory ran out, of the machine or of a container
(``__oom_kill_process``); the count distinguishes these kills from others.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analyzer.capture.run.source_frames import is_library, shorten_path
from analyzer.model.contract.child_messages import ChildEnd
from analyzer.model.errors import (
    AnalyzerError,
    FailureKind,
    InputError,
    StepOutOfMemory,
    TargetError,
)
from analyzer.model.units import format_bytes

_KILLS: Final = re.compile(r"^oom_kill\s+(\d+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_LIMIT_FILES: Final = ("memory.max", "memory/memory.limit_in_bytes")
"""Limits of the control group below ``/sys/fs/cgroup``, version 2 and 1, as a container mounts them."""

_NEAR: Final = 0.8
"""Share of the memory limit above which a killed process probably ran out of memory."""

_MAX_LINE: Final = 300  # characters of the log in a message
_TAIL_BYTES: Final = 256 << 10  # of the log that are searched
_LOGGED: Final = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old>[IWEF]) |(?P<new>[IWEF])\d{4} )"
    r"(?P<head>[^\]]*)\] ?(?P<text>.*)"
)
"""A line of TensorFlow's log, as ``tsl/platform/default/logging.cc`` or Abseil writes it."""
_LOG_CONTINUATIONS: Final = (
    " ",
    "\t",
    "WARNING: All log messages before absl",
    "To enable the following instructions",
    "If the cause is memory fragmentation",
    "Current allocation summary follows",
    "<allocator contains no memory>",
    "Hint: If you want to see a list of allocated tensors when OOM happens",
)
_STATISTIC: Final = re.compile(r"[A-Z]\w+: +[\d.]+(?:[KMGT]i)?B?$")
"""A line of an allocator's statistics, logged without a head: ``MaxInUse:   49.35MiB``."""
_UNKNOWN_FLAG: Final = "Unknown flag"  # "in XLA_FLAGS": xla/parse_flags_from_env.cc
_RAN_OUT: Final = "ran out of memory trying to allocate"  # BFCAllocator::AllocateRawInternal
_NO_TENSOR: Final = "OOM when allocating tensor"  # OpKernelContext::allocate_tensor
_NO_HOST_MEMORY: Final = ("std::bad_alloc", "MemoryError", "Cannot allocate memory")
_COUNT_OVERFLOW: Final = "Check failed: work_element_count"
"""``gpu_launch_config.h``: the count of a kernel's elements is an int and became negative."""
_PYTHON_DIED: Final = "Fatal Python error: "  # first line of faulthandler; the stack follows
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Processes killed so far for lack of memory, and the memory of machine or container, if known."""

    kills: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentEnd:
    """The end of a child that reported no error, with host memory before and after it."""

    target: str
    stage: str
    child: ChildEnd
    before: HostMemory
    after: HostMemory
    log: str
    saved_log: Path | None = None


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Read the kill count and the limits below ``root/proc`` and ``root/sys``."""
    kills = sum(map(int, _KILLS.findall(_read_text(root / "proc/vmstat"))))
    limits = [1024 * int(kib) for kib in _TOTAL.findall(_read_text(root / "proc/meminfo"))]
    for name in _LIMIT_FILES:
        with contextlib.suppress(ValueError):  # "max", or no such file
            limits.append(int(_read_text(root / "sys/fs/cgroup" / name)))
    return HostMemory(kills, min(limits, default=None))


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def explain_end(end: SilentEnd) -> AnalyzerError:
    """Return the error for a child's end, with its kind."""
    reason = find_reason(end.log)
    if _UNKNOWN_FLAG in reason:
        return InputError(
            f"TensorFlow ended: {reason[reason.index(_UNKNOWN_FLAG) :]}.",
            hint="Correct the environment variable XLA_FLAGS.",
        )
    at = f"{_find_user_line(end.log)}while {end.stage}"
    suffix = f": {reason}" if reason else "."
    hint = f"Its full output: {end.saved_log}" if end.saved_log else ""
    code = end.child.code
    if code == -signal.SIGKILL:
        return _explain_kill(end, hint)
    if any(sign in reason for sign in _NO_HOST_MEMORY):
        return StepOutOfMemory(f"The process ran out of host memory {at}{suffix}", hint=hint)
    if code is None:
        return TargetError(
            f"Another process ended the process of {end.target} {at}.",
            hint=hint,
            kind=FailureKind.KILLED,
        )
    if code >= 0:
        last = f"; its last output: {reason}" if reason else " (os._exit or a library call)."
        return TargetError(
            f"{end.target} ended its own process with exit code {code} {at}{last}",
            hint=hint,
            kind=FailureKind.EXITED,
        )
    name = describe_signal(-code)
    if _RAN_OUT in reason or _NO_TENSOR in reason:
        # oneDNN's convolution crashes when it gets no memory (TensorFlow 2.21).
        return StepOutOfMemory(
            f"{end.target} ran out of memory {at} and crashed ({name}): {reason}",
            hint=f"analyze oom {end.saved_log} explains it." if end.saved_log else "",
        )
    by_other = -code in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    kind = FailureKind.KILLED if by_other else FailureKind.CRASHED
    if reason.startswith(_COUNT_OVERFLOW):
        kind = FailureKind.TOO_LARGE
    return TargetError(
        f"The process of {end.target} died of {name} {at}{suffix}", hint=hint, kind=kind
    )


def _explain_kill(end: SilentEnd, hint: str) -> AnalyzerError:
    """Distinguish the system's out-of-memory killer from another SIGKILL."""
    smaller = "Try a smaller --batch-size."
    if end.after.kills > end.before.kills:
        return StepOutOfMemory(
            f"The system killed the process while {end.stage}: it ran out of host memory.",
            hint=smaller,
        )
    held, limit = end.child.peak_rss_bytes, end.after.limit_bytes
    if limit and held > _NEAR * limit:
        return StepOutOfMemory(
            f"The process was killed (SIGKILL) while {end.stage}, probably because host memory ran "
            f"out: it held {format_bytes(held)} of {format_bytes(limit)}.",
            hint=smaller,
        )
    return TargetError(
        f"The process of {end.target} was killed (SIGKILL) while {end.stage}, and the system reports "
        "no lack of memory: kill -9 or a job's time limit is likely.",
        hint=hint,
        kind=FailureKind.KILLED,
    )


def describe_signal(number: int) -> str:
    """Return a signal's name and meaning: SIGSEGV (Segmentation fault)."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    meaning = signal.strsignal(number)
    return f"{name} ({meaning})" if meaning else name


def read_tail(log: Path) -> str:
    """Return the end of a log, or an empty text if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def find_reason(log: str) -> str:
    """Return the log line that best explains why the process ended; may be empty.

    The first choice is a failed check of TensorFlow's, or the allocation failure that led to it. Then
    follows the last line that belongs neither to TensorFlow's log nor to Python's traceback, because a
    logged problem such as a missing CUDA driver ends nothing. The last choice is a logged allocation
    failure, because some kernels crash after one.
    """
    lines = log.partition(_PYTHON_DIED)[0].splitlines()
    printed = ran_out = ""
    for number, line in reversed(list(enumerate(lines))):
        logged = _LOGGED.match(line)
        if logged is not None:
            if "F" in (logged["old"], logged["new"]):
                cause = _find_allocation_failure(lines[:number], logged["head"])
                return _shorten(cause or logged["text"])
            if _RAN_OUT in logged["text"]:
                ran_out = ran_out or logged["text"]
        elif not printed and line.strip() and not _continues_log(line):
            printed = line
    return _shorten(printed or ran_out)


def _find_allocation_failure(lines: Sequence[str], head: str) -> str:
    """Return the allocation failure that a thread logged just before a failed check, or "".

    The check ``DCHECK_NOTNULL`` in ``mkl_util.h`` fails if a buffer could not be allocated.
    """
    thread, no_tensor = head.split()[-2:-1], ""
    for line in reversed(lines):
        logged = _LOGGED.match(line)
        if logged is None or logged["head"].split()[-2:-1] != thread:
            continue
        if _RAN_OUT in logged["text"]:
            return logged["text"]
        if _NO_TENSOR in logged["text"]:
            no_tensor = no_tensor or logged["text"]
        elif "bfc_allocator" not in logged["head"]:
            break
    return no_tensor


def _continues_log(line: str) -> bool:
    """Return whether a line without a head belongs to a log message or a traceback."""
    return line.startswith(_LOG_CONTINUATIONS) or _STATISTIC.match(line) is not None


def _find_user_line(log: str) -> str:
    """Return ``at file:line `` of the user's code from faulthandler's stack, or ""."""
    for file, line in _FRAME.findall(log.partition(_PYTHON_DIED)[2]):
        if not is_library(file):
            return f"at {shorten_path(file)}:{line} "
    return ""


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…"
