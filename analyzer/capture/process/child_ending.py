"""The error for a child process that ended without reporting one: its cause, in one line.

A child that died in C++, in a library or by a signal leaves only an exit status and its log. Linux
counts the processes that it killed because memory ran out, of the machine or of a container
(``__oom_kill_process``).
"""

import contextlib
import re
import signal
from pathlib import Path
from typing import Final, NamedTuple

from analyzer.capture.run.source_frames import is_library, shorten_path
from analyzer.model import errors
from analyzer.model.contract.child_messages import ChildEnd
from analyzer.model.units import format_bytes

_NEAR: Final = 0.8
"""Share of the memory limit above which a killed process probably ran out of memory."""
_MAX_LINE: Final = 300  # characters of the log in a message
_TAIL_BYTES: Final = 256 << 10  # of the log that are searched
_LOGGED: Final = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old>[IWEF]) |(?P<new>[IWEF])\d{4} )"
    r"[^\]]*\] ?(?P<text>.*)"
)
"""A line of TensorFlow's log, as ``tsl/platform/default/logging.cc`` or Abseil writes it."""
_CONTINUED: Final = re.compile(
    r"[ \t]|WARNING: All log messages before absl|To enable the following instructions"
    r"|If the cause is memory fragmentation|Current allocation summary follows"
    r"|<allocator contains no memory>|Hint: If you want to see a list of allocated tensors when OOM"
    r"|[A-Z]\w+: +[\d.]+(?:[KMGT]i)?B?$"
)
"""A line without a head of a log message or traceback; the last form is an allocator's statistics."""
_RAN_OUT: Final = "ran out of memory trying to allocate"  # BFCAllocator::AllocateRawInternal
_NO_TENSOR: Final = "OOM when allocating tensor"  # OpKernelContext::allocate_tensor
_NO_BUFFER: Final = "Must be non NULL"  # DCHECK_NOTNULL in mkl_util.h, without a buffer
_NO_HOST_MEMORY: Final = ("std::bad_alloc", "MemoryError", "Cannot allocate memory")
_COUNT_OVERFLOW: Final = "Check failed: work_element_count"
"""``gpu_launch_config.h``: the count of a kernel's elements is an int and became negative."""
_PYTHON_DIED: Final = "Fatal Python error: "  # first line of faulthandler; the stack follows
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)


class HostMemory(NamedTuple):
    """Processes killed so far for lack of memory, and the memory of machine or container, if known."""

    kills: int
    limit_bytes: int | None


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the kill count and the limits that ``/proc`` and ``/sys`` state.

    The control group's limit has one file in version 2 and another in version 1, as containers mount it.
    """

    def find_numbers(name: str, pattern: str) -> list[int]:
        with contextlib.suppress(OSError):
            text = (root / name).read_text("utf-8", "replace")
            return [int(number) for number in re.findall(pattern, text, re.MULTILINE)]
        return []

    kills = find_numbers("proc/vmstat", r"^oom_kill\s+(\d+)$")
    limits = [1024 * kib for kib in find_numbers("proc/meminfo", r"^MemTotal:\s+(\d+) kB$")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limits += find_numbers(f"sys/fs/cgroup/{name}", r"^\d+$")
    return HostMemory(sum(kills), min(limits, default=None))


def explain_end(
    child: ChildEnd, at: str, target: str, log: str, saved_log: Path | None, memory: HostMemory
) -> errors.AnalyzerError:
    """Return the error for the end of a child that reported none, with its kind.

    ``at`` is its last stage; ``memory`` has the processes killed since its start.
    """
    reason, code = find_reason(log), child.code
    stage, at = f"while {at}", f"{_find_user_line(log)}while {at}"
    suffix = f": {reason}" if reason else "."
    hint = f"Its full output: {saved_log}" if saved_log else ""
    if code == -signal.SIGKILL:
        return _explain_kill(child, stage, memory) or errors.TargetError(
            f"The process of {target} was killed (SIGKILL) {stage}, and the system reports no lack of "
            "memory: kill -9 or a job's time limit is likely.",
            hint=hint,
            kind=errors.FailureKind.KILLED,
        )
    if any(sign in reason for sign in _NO_HOST_MEMORY):
        return errors.StepOutOfMemory(f"The process ran out of host memory {at}{suffix}", hint=hint)
    if code is None:
        message, kind = (
            f"Another process ended the process of {target} {at}.",
            errors.FailureKind.KILLED,
        )
    elif code >= 0:
        last = f"; its last output: {reason}" if reason else " (os._exit or a library call)."
        message = f"{target} ended its own process with exit code {code} {at}{last}"
        kind = errors.FailureKind.EXITED
    elif _RAN_OUT in reason or _NO_TENSOR in reason:
        # oneDNN's convolution crashes when it gets no memory (TensorFlow 2.21).
        return errors.StepOutOfMemory(
            f"{target} ran out of memory {at} and crashed ({_describe_signal(-code)}): {reason}",
            hint=f"analyze oom {saved_log} explains it." if saved_log else "",
        )
    else:
        message = f"The process of {target} died of {_describe_signal(-code)} {at}{suffix}"
        by_other = -code in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        kind = errors.FailureKind.KILLED if by_other else errors.FailureKind.CRASHED
        if reason.startswith(_COUNT_OVERFLOW):
            kind = errors.FailureKind.TOO_LARGE
    return errors.TargetError(message, hint=hint, kind=kind)


def _explain_kill(child: ChildEnd, stage: str, memory: HostMemory) -> errors.AnalyzerError | None:
    """Return the error if the system's out-of-memory killer ended the child, or probably did."""
    held, limit = child.peak_rss_bytes, memory.limit_bytes
    message = f"The system killed the process {stage}: it ran out of host memory."
    if not memory.kills:
        if not limit or held <= _NEAR * limit:
            return None
        message = (
            f"The process was killed (SIGKILL) {stage}, probably because host memory ran out: it held "
            f"{format_bytes(held)} of {format_bytes(limit)}."
        )
    return errors.StepOutOfMemory(message, hint="Try a smaller --batch-size.")


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    meaning = signal.strsignal(number)
    return f"{name} ({meaning})" if meaning else name


def read_tail(log: Path) -> str:
    """Return the end of a log, or an empty text if there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
        return file.read().decode("utf-8", "replace")
    return ""


def find_reason(log: str) -> str:
    """Return the log line that best explains why the process ended; may be empty.

    The first choice is the last failed check of TensorFlow's, or the allocation failure that led to it.
    Then follows the last line that belongs neither to TensorFlow's log nor to Python's traceback,
    because a logged problem such as a missing CUDA driver ends nothing. The last choice is a logged
    allocation failure, because some kernels crash after one.
    """
    failed = printed = ran_out = no_tensor = ""
    for line in log.partition(_PYTHON_DIED)[0].splitlines():
        logged = _LOGGED.match(line)
        if logged is None:
            printed = line if line.strip() and not _CONTINUED.match(line) else printed
        elif "F" in (logged["old"], logged["new"]):
            failed = logged["text"]
        elif _RAN_OUT in logged["text"]:
            ran_out = logged["text"]
        elif _NO_TENSOR in logged["text"]:
            no_tensor = logged["text"]
    if _NO_BUFFER in failed:
        failed = ran_out or no_tensor or failed
    reason = " ".join((failed or printed or ran_out).split())
    return reason if len(reason) <= _MAX_LINE else f"{reason[: _MAX_LINE - 1]}…"


def _find_user_line(log: str) -> str:
    """Return ``at file:line `` of the user's code from faulthandler's stack, or ""."""
    for file, line in _FRAME.findall(log.partition(_PYTHON_DIED)[2]):
        if not is_library(file):
            return f"at {shorten_path(file)}:{line} "
    return ""
