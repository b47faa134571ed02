"""A child process with the processes that it starts: its messages, and its end in one line.

A child that died in C++, in a library or by a signal leaves only an exit status and its log. Linux
counts the processes that it killed because memory ran out, of the machine or of a container
(``__oom_kill_process``).
"""

import math
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from analyzer.capture.run.source_frames import is_library, shorten_path
from analyzer.model.contract.child_messages import CopyEnd, Message, parse_message
from analyzer.model.errors import (
    AnalyzerError,
    FailureKind,
    StepOutOfMemory,
    TargetError,
)
from analyzer.model.interrupts import delay_signals

MARK = "TF_MEMORY_ANALYZER_CHILD"
_POLL_S = 0.5  # interval of checks whether the child is gone
_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_MAX_KILL_S = 5.0  # for a process in uninterruptible sleep, which stays
_PAUSE_S = 0.01  # between two checks
_CLOSED_S = 1.0  # between the end of a child's output and its own


class Child:
    """A command that reports its progress as messages.

    ``messages`` stops when the time of ``limit_time`` is over.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.has_ended = False
        self.code: int | None = None  # exit status, or minus the number of a signal
        self._deadline_s = math.inf
        self._text = b""
        self._mark = secrets.token_hex(8)

        with log.open("ab") as log_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**environment, MARK: self._mark},
                start_new_session=True,
            )

    def yield_time(self, niceness: int) -> None:
        """Let other processes of this user run first, on a system that has priorities."""
        pid = self._process.pid
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, pid, niceness)
            # Linux may share time between sessions first (``sched(7)``), and each child has its own.
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness))

    def limit_time(self, seconds: float) -> None:
        """Let ``messages`` stop after some seconds from now."""
        self._deadline_s = time.monotonic() + seconds

    def messages(self) -> Iterator[Message]:
        """Yield the child's messages until it ends or its time is over."""
        while not self.has_ended:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                message = parse_message(line)

                if message is not None:
                    yield message

                continue

            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                return

            self._read(min(_POLL_S, left_s))

    def _read(self, timeout_s: float) -> None:
        """Read output for up to ``timeout_s``; note the end if none can follow."""
        assert self._process.stdout is not None

        # Not to the end of the pipe: a process that the child started may hold it open.
        is_gone = self._process.poll() is not None
        wait_s = 0 if is_gone else timeout_s

        if select.select([self._process.stdout], [], [], wait_s)[0]:
            content = os.read(self._process.stdout.fileno(), 1 << 16)
            self._text += content
            is_gone = not content

        if is_gone:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSED_S)

            self.code = self._process.returncode
            self.has_ended = True

    def send(self, line: bytes) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        with suppress(OSError):
            os.write(self._process.stdin.fileno(), line + b"\n")

    def close(self) -> None:
        """End it and all that it started, if necessary, and release its pipes."""
        with delay_signals(), self._process:
            end_marked(self._mark, self._process.pid, reap=self._process.poll)
            self._process.kill()
            self._process.wait()

            if not self.has_ended:
                self.code = self._process.returncode

            self.has_ended = True


class Fork:
    """One capture in a fork of a child; used like a ``Child``."""

    def __init__(self, server: Child, request: Path) -> None:
        self.has_ended = False
        self.code: int | None = None
        self._server = server
        self.limit_time = server.limit_time
        server.send(os.fsencode(request))

    def messages(self) -> Iterator[Message]:
        """Yield the fork's messages until it ends or its time is over."""
        for message in self._server.messages():
            if isinstance(message, CopyEnd):
                self.has_ended = True
                self.code = message.code
                return

            yield message

        self.has_ended = self._server.has_ended
        self.code = self._server.code

    def close(self) -> None:
        """End the server if the fork still runs or the server has ended."""
        if not self.has_ended or self._server.has_ended:
            self._server.close()


def end_marked(mark: str, leader: int, reap: Callable[[], object]) -> None:
    """Terminate all processes with a mark, and kill those that still run after a second.

    Without Linux' ``/proc`` these are the processes of the session of ``leader``.
    """
    started_s = time.monotonic()
    number = signal.SIGTERM

    while True:
        reap()
        running = _list_marked(mark, leader)
        elapsed_s = time.monotonic() - started_s

        if not running or elapsed_s > _GRACE_S + _MAX_KILL_S:
            return
        if elapsed_s > _GRACE_S:
            number = signal.SIGKILL

        for pid in running:
            with suppress(OSError):
                os.kill(pid, number)

        time.sleep(_PAUSE_S)


def _list_marked(mark: str, leader: int) -> list[int]:
    """Return the other running processes with a mark in their environment."""
    if not os.path.isdir("/proc/self/task"):
        with suppress(OSError):
            os.killpg(leader, 0)
            return [-leader]

        return []

    found = []
    wanted = f"{MARK}={mark}".encode()

    for name in filter(str.isdecimal, os.listdir("/proc")):
        # That of a zombie is empty.
        with suppress(OSError):
            content = Path("/proc", name, "environ").read_bytes()
            if wanted in content and int(name) != os.getpid():
                found.append(int(name))

    return found


def end_with_parent(
    folder: Path, take: Callable[[bytes], None] = lambda line: None
) -> None:
    """End this process, its descendants and ``folder`` when the parent is gone.

    ``take`` gets the lines that the parent sends until then.
    """
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        with open(pipe, "rb", buffering=0) as lines:
            for line in lines:
                take(line.rstrip(b"\n"))

        # The main thread may still write to the folder: a fork removes it when this process is gone.
        leader = os.getpid()
        if os.fork() == 0:
            os.setpgid(0, 0)
            end_marked(os.environ[MARK], leader, reap=lambda: None)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


# `-c` and PYTHONPATH put the working folder first, where a user's json.py may be. It must not be found
# until TensorFlow and this package are imported.
_START = """\
import os, sys
modules = frozenset(name.partition(".")[0] for name in sys.modules)
places = [place for place in sys.path if place]
try:
    here = os.getcwd()
except OSError:
    here = ""
sys.path[:] = [place for place in places if os.path.realpath(place) != here]
sys.path.append(sys.argv[1])
from analyzer.capture.{module} import main
sys.exit(main(sys.argv[2], places, modules))
"""


def make_start_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main`` of a module of ``capture`` without the working folder.

    ``main`` gets the first argument, the user's ``sys.path``, and the modules of a bare Python.
    """
    root = str(Path(__file__).parents[3])
    return [sys.executable, "-c", _START.replace("{module}", module), root, *arguments]


_MAX_SERVERS = 2  # at once; each holds all of TensorFlow


class ForkServers(AbstractContextManager["ForkServers"]):
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.
    ``folder`` holds the simulated card's tools; it is removed if this process is killed. ``niceness``
    is that of the servers and of their forks.
    """

    def __init__(self, folder: Path, niceness: int = 0) -> None:
        self.folder = folder
        self.niceness = niceness

        # whether a step has needed the whole memory of a large card
        self.needs_whole_pool = False
        self._servers: dict[frozenset[tuple[str, str]], Child] = {}

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            server.close()

    def start(self, log: Path, environment: Mapping[str, str]) -> Child | None:
        """Return the server for an environment; None if the capture needs a process of its own."""
        key = frozenset(environment.items())
        server = self._servers.get(key)

        if server is not None and not server.has_ended:
            return server

        is_full = server is None and len(self._servers) == _MAX_SERVERS
        if sys.platform != "linux" or is_full:
            return None

        command = make_start_command("process.capture_worker", str(self.folder))
        server = Child(command, log, environment)
        server.yield_time(self.niceness)
        self._servers[key] = server

        return server


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
        return StepOutOfMemory(message, "Try a smaller --batch-size.")

    # oneDNN's convolution and XLA's buffers crash after a refused request (TensorFlow 2.21).
    if any(sign in reason for sign in _NO_MEMORY):
        return StepOutOfMemory(f"{target} ran out of memory {at}: {reason}", hint)

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

    return TargetError(message, hint, kind=kind)


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
