"""A child process under a supervisor: its messages and its end.

Several captures may be forks of one such process (``fork_server``).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from analyzer.capture.process import supervisor
from analyzer.model.contract.child_messages import ChildEnd, CopyEnd, Message, parse_message
from analyzer.model.interrupts import delay_signals

_POLL_S: Final = 0.5  # interval of checks whether the supervisor itself is gone
_MAX_SERVERS: Final = 2  # at once; each holds all of TensorFlow
_END_S: Final = 15.0  # longer than a supervisor needs, even if a process cannot be killed


class Child:
    """A supervised command that reports its progress as messages.

    It runs in a session of its own, so that a terminal's Ctrl-C reaches it only through
    ``interrupt``. ``messages`` stops when ``time.monotonic`` reaches ``deadline_s``.
    """

    def __init__(
        self, command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.end: ChildEnd | None = None  # None while it runs
        self.deadline_s = math.inf
        self._text = b""
        self._lines: deque[bytes] = deque()
        with log.open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=dict(environment),
                start_new_session=True,
            )

    def messages(self) -> Iterator[Message]:
        """Yield the child's messages until it ends or ``deadline_s`` comes."""
        while self.end is None and (left_s := self.deadline_s - time.monotonic()) > 0:
            if not self._lines:
                self._read_lines(min(_POLL_S, left_s))
                continue
            message = parse_message(self._lines.popleft())
            if isinstance(message, ChildEnd):
                self.end = message
            elif message is not None:
                yield message

    def interrupt(self) -> None:
        """Pass Ctrl-C on to it."""
        self._send(supervisor.INTERRUPT)

    def close(self) -> None:
        """End it and all that it started, if necessary, and release its pipes."""
        with delay_signals():
            self._send(supervisor.END)
            self.deadline_s = time.monotonic() + _END_S
            deque(self.messages(), maxlen=0)
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # type: ignore[union-attr]
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the system kills the child with it
                self._process.wait()
            self.end = self.end or ChildEnd(None)
            self._process.stdout.close()  # type: ignore[union-attr]

    def _send(self, order: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), order)  # type: ignore[union-attr]

    def _read_lines(self, timeout_s: float) -> None:
        """Read messages for up to ``timeout_s``; set ``end`` if none can follow."""
        # Not to the end of the pipe: a process that the child started may hold it open.
        is_gone = self._process.poll() is not None
        stdout = self._process.stdout.fileno()  # type: ignore[union-attr]
        if select.select([stdout], [], [], 0 if is_gone else timeout_s)[0]:
            content = os.read(stdout, 1 << 16)
            *lines, self._text = (self._text + content).split(b"\n")
            self._lines.extend(lines)
            is_gone = not content
        if is_gone:
            self.end = self.end or ChildEnd(None)


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
from analyzer.capture.{module} import main
sys.exit(main(sys.argv[2], places, modules))
"""


def make_start_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main`` of a module of ``capture`` without the working folder.

    ``main`` gets the first argument, the user's ``sys.path``, and the modules of a bare Python.
    """
    root = str(Path(__file__).parents[3])
    return [sys.executable, "-c", _START.replace("{module}", module), root, *arguments]


class ForkServer(Child):
    """A child that serves each request in a fork of itself; ``end`` is that of the latest fork.

    ``is_over`` says whether the child itself has ended.
    """

    def __init__(self, pipe: Path, log: Path, environment: Mapping[str, str]) -> None:
        os.mkfifo(pipe)
        self.is_over = False
        self._path, self._pipe = pipe, os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        command = make_start_command("process.fork_server", str(pipe))
        super().__init__(command, log, pipe.parent, environment)

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
            deque(self.messages(), maxlen=0)
        self.is_over = True
        super().close()
        self._path.unlink(missing_ok=True)


class ForkServers(contextlib.AbstractContextManager["ForkServers"]):
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.
    ``folder`` holds the servers' pipes; it is removed if this process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needs_whole_pool = False  # whether a step has needed the whole memory of a large card
        self._servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self._started = 0

    def __exit__(self, *error: object) -> None:
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
