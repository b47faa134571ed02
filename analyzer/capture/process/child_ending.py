"""The error for a child process that ended without reporting one: its cause, in one line.

A child that died in C++, in a library or by a signal leaves only an exit status and its log. Linux
counts the processes that it killed because memory ran out, of the machine or of a container
(``__oom_kill_process``).
"""

import re
import signal
from contextlib import suppress
from pathlib import Path

from analyzer.capture.run.source_frames import is_library, shorten_path
from analyzer.model.errors import (
    AnalyzerError,
    FailureKind,
    StepOutOfMemory,
    TargetError,
)

_MAX_LINE = 300  # characters of the log in a message
_TAIL_BYTES = 256 << 10  # of the log that are searched

# A line of TensorFlow's log, as ``tsl/platform/default/logging.cc`` or Abseil writes it.
_LOGGED = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?(?P<level>[IWEF])(?:\d{4})? [^\]]*\] ?(?P<text>.*)"
)

# A line without a head of a log message or traceback; the last form is an allocator's statistics.
_CONTINUED = re.compile(
    r"[ \t]|WARNING: All log messages before absl|To enable the following instructions"
    r"|If the cause is memory fragmentation|Current allocation summary follows"
    r"|<allocator contains no memory>|Hint: If you want to see a list of allocated tensors when OOM"
    r"|[A-Z]\w+: +[\d.]+(?:[KMGT]i)?B?$"
)
_NO_MEMORY = (
    "ran out of memory trying to allocate",  # BFCAllocator::AllocateRawInternal
    "OOM when allocating tensor",  # OpKernelContext::allocate_tensor
    "std::bad_alloc",
    "MemoryError",
    "Cannot allocate memory",
)
_NO_BUFFER = (
    "Must be non NULL",  # DCHECK_NOTNULL in mkl_util.h, without a buffer
    "h != kInvalidChunkHandle",  # bfc_allocator.cc: a failed step has freed the buffer
)

# ``gpu_launch_config.h``: the count of a kernel's elements is an int and became negative.
_COUNT_OVERFLOW = "Check failed: work_element_count"
_BY_OTHERS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGKILL")

# first line of faulthandler; the stack follows
_PYTHON_DIED = "Fatal Python error: "
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)


def count_memory_kills() -> int:
    """Return the number of processes that the system has killed for lack of memory."""
    with suppress(OSError):
        text = Path("/proc/vmstat").read_text()
        counts = re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return sum(map(int, counts))

    return 0


def explain_end(
    code: int | None,
    at: str,
    target: str,
    log: str,
    hint: str,
    *,
    kills: int,
) -> AnalyzerError:
    """Return the error for the end of a child that reported none, with its kind.

    ``code`` is its exit code, or minus a signal; ``at`` its last stage; ``kills`` how many processes the
    system killed for lack of memory since its start.
    """
    reason = find_reason(log)
    at = f"{_find_user_line(log)}while {at}"

    if code == -signal.SIGKILL and kills:
        message = f"The system killed the process {at}: it ran out of host memory."
        return StepOutOfMemory(message, hint="Try a smaller --batch-size.")

    # oneDNN's convolution and XLA's buffers crash after a refused request (TensorFlow 2.21).
    if any(sign in reason for sign in _NO_MEMORY):
        return StepOutOfMemory(f"{target} ran out of memory {at}: {reason}", hint=hint)

    last = f"; its last output: {reason}" if reason else "."
    if code is None or code >= 0:
        kind = FailureKind.EXITED
        message = f"{target} ended its own process with exit code {code} {at}{last}"
    else:
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        kind = FailureKind.CRASHED

        if name in _BY_OTHERS:
            kind = FailureKind.KILLED
        elif reason.startswith(_COUNT_OVERFLOW):
            kind = FailureKind.TOO_LARGE

        meaning = signal.strsignal(-code) or "unknown"
        message = f"The process of {target} died of {name} ({meaning}) {at}{last}"

    return TargetError(message, hint=hint, kind=kind)


def read_tail(log: Path) -> str:
    """Return the end of a log, or an empty text if there is none."""
    with suppress(OSError), log.open("rb") as file:
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
    failed = printed = no_memory = ""
    for line in log.partition(_PYTHON_DIED)[0].splitlines():
        logged = _LOGGED.match(line)
        if logged is None:
            if line.strip() and not _CONTINUED.match(line):
                printed = line
        elif logged["level"] == "F":
            failed = logged["text"]
        elif _NO_MEMORY[0] in logged["text"]:  # it states the request
            no_memory = logged["text"]
        elif _NO_MEMORY[1] in logged["text"]:
            no_memory = no_memory or logged["text"]

    if any(sign in failed for sign in _NO_BUFFER):
        failed = no_memory or failed

    reason = " ".join((failed or printed or no_memory).split())

    if len(reason) <= _MAX_LINE:
        return reason

    return f"{reason[: _MAX_LINE - 1]}…"


def _find_user_line(log: str) -> str:
    """Return ``at file:line `` of the user's code from faulthandler's stack, or ""."""
    for file, line in _FRAME.findall(log.partition(_PYTHON_DIED)[2]):
        if not is_library(file):
            return f"at {shorten_path(file)}:{line} "

    return ""
