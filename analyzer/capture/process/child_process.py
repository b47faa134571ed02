"""A child process: its messages, its end, and the end of what it started.

Several captures may be forks of one such process (``fork_server``).
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from analyzer.model.contract.child_messages import ChildEnd, CopyEnd, Message, parse_message
from analyzer.model.interrupts import delay_signals

_POLL_S: Final = 0.5  # interval of checks whether the child is gone but its pipe open
_PAUSE_S: Final = 0.01  # between two checks while it ends
_MAX_SERVERS: Final = 2  # at once; each holds all of TensorFlow
_GRACE_S: Final = 1.0  # between SIGTERM and SIGKILL
_END_S: Final = 5.0  # for a process that closes its objects, or that cannot be killed
_RSS_UNIT_BYTES: Final = 1 if sys.platform == "darwin" else 1024  # getrusage(2)


class Child:
    """A command that reports its progress as messages.

    It leads a session and a process group of its own. So a terminal's Ctrl-C reaches it only through
    ``interrupt``, and ``close`` also ends the processes that it started. On Linux it ends with this
    process (``make_start_command``). ``messages`` stops when ``time.monotonic`` reaches ``deadline_s``.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.end: ChildEnd | None = None  # None while it runs
        self.deadline_s = math.inf
        self._text = b""
        self._lines: deque[bytes] = deque()
        with log.open("ab") as log_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=dict(environment),
                start_new_session=True,
            )
        self._exit: ChildEnd | None = None

    def messages(self) -> Iterator[Message]:
        """Yield the child's messages until it ends or ``deadline_s`` comes."""
        while self.end is None and (left_s := self.deadline_s - time.monotonic()) > 0:
            if self._lines:
                message = parse_message(self._lines.popleft())
                if message is not None:
                    yield message
                continue
            is_gone = self._reap()  # first, so that all its messages are read before its end
            # Not to the end of the pipe: a process that the child started may hold it open.
            if not self._read_lines(0 if is_gone else min(_POLL_S, left_s)) and is_gone:
                self.end = self._exit

    def interrupt(self) -> None:
        """Send it Ctrl-C."""
        if not self._reap():
            os.kill(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """End it and its process group, if necessary, and release its pipe."""
        with delay_signals():
            for number, limit_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _END_S)):
                until_s = time.monotonic() + limit_s
                self._send(number)
                while not (self._reap() and self._send(0)) and time.monotonic() < until_s:
                    time.sleep(_PAUSE_S)
            self.end = self.end or self._exit or ChildEnd(None)
            self._process.stdout.close()  # type: ignore[union-attr]

    def _send(self, number: int) -> bool:
        """Send a signal to the process group; return whether the group is empty."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
            return True
        return False

    def _reap(self) -> bool:
        """Return whether the child has ended."""
        if self._exit is None:
            try:
                pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            except ChildProcessError:  # the user's code has reaped it
                pid, self._exit = 0, ChildEnd(None)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self._exit = ChildEnd(code, usage.ru_maxrss * _RSS_UNIT_BYTES)
            self._process.returncode = self._exit and (self._exit.code or 0)
        return self._exit is not None

    def _read_lines(self, timeout_s: float) -> bool:
        """Read messages for up to ``timeout_s``; return whether there were any bytes."""
        stdout = self._process.stdout
        assert stdout is not None
        content = b""
        if select.select([stdout], [], [], timeout_s)[0]:
            content = os.read(stdout.fileno(), 1 << 16)
            if not content:
                time.sleep(_PAUSE_S)  # closed, but perhaps not ended yet
            *lines, self._text = (self._text + content).split(b"\n")
            self._lines.extend(lines)
        return bool(content)


# `-c` and PYTHONPATH put the working folder first, where a user's json.py may be. It must not be found
# until TensorFlow and this package are imported.
_START: Final = """\
import os, sys
modules = frozenset(name.partition(".")[0] for name in sys.modules)
places = [place for place in sys.path if place]
try:
    here = os.getcwd()
except OSError:
    here = ""
sys.path[:] = [place for place in places if os.path.realpath(place) != here]
sys.path.append(sys.argv[1])
from analyzer.model.interrupts import die_with_parent
die_with_parent()
from analyzer.capture.{module} import main
sys.exit(main(sys.argv[2], places, modules))
"""


def make_start_command(module: str, argument: str = "") -> list[str]:
    """Return the command that runs ``main`` of a module of ``capture`` without the working folder.

    ``main`` gets the argument, the user's ``sys.path``, and the modules of a bare Python.
    """
    root = str(Path(__file__).parents[3])
    return [sys.executable, "-c", _START.replace("{module}", module), root, argument]


class ForkServer(Child):
    """A child that serves each request in a fork of itself; ``end`` is that of the latest fork.

    Attributes:
        is_over: Whether the child itself has ended.
    """

    def __init__(self, pipe: Path, log: Path, environment: Mapping[str, str]) -> None:
        os.mkfifo(pipe)
        self.is_over = False
        self._path, self._pipe = pipe, os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        command = make_start_command("process.fork_server", str(pipe))
        super().__init__(command, log, environment)

    def serve(self, request: Path) -> ForkServer:
        """Let a fork serve a request file."""
        self.end, self.deadline_s = None, math.inf
        os.write(self._pipe, os.fsencode(request) + b"\n")
        return self

    def messages(self) -> Iterator[Message]:
        """Yield the fork's messages until it ends or ``deadline_s`` comes."""
        for message in super().messages():
            if isinstance(message, CopyEnd):
                self.end = ChildEnd(message.code, message.peak_rss_bytes)
                return
            yield message
        self.is_over = self.end is not None

    def interrupt(self) -> None:
        """End the server: the user has interrupted the whole series of captures."""
        self.stop()

    def close(self) -> None:
        """End the server if the fork still runs or the server has ended."""
        if self.end is None or self.is_over:
            self.stop()

    def stop(self) -> None:
        """End the server and a running fork; an idle server ends when its pipe closes."""
        if self._pipe < 0:
            return
        os.close(self._pipe)
        self._pipe = -1
        if self.end is not None and not self.is_over:
            self.end, self.deadline_s = None, time.monotonic() + _END_S
            for _ in self.messages():
                pass
        self.is_over = True
        super().close()
        self._path.unlink(missing_ok=True)


class ForkServers:
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.
    ``folder`` holds the servers' pipes; it is removed if this process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self._started = 0

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.stop()

    def start(self, log: Path, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server for an environment; None if the capture needs a process of its own."""
        key = frozenset(environment.items())
        server = self._servers.get(key)
        if sys.platform != "linux" or (server is None and len(self._servers) == _MAX_SERVERS):
            return None
        if server is None or server.is_over:
            self._started += 1
            pipe = self.folder / f"requests-{self._started}"
            server = self._servers[key] = ForkServer(pipe, log, environment)
        return server
