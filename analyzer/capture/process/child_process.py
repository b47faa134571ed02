"""A child process under a supervisor: its messages and its end.

Several captures may be forks of one such process (``fork_server``).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
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
    ``interrupt``.

    Attributes:
        end: How it ended; None while it runs.
        deadline_s: Value of ``time.monotonic`` at which ``messages`` stops.
    """

    def __init__(
        self, command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.end: ChildEnd | None = None
        self.deadline_s = float("inf")
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
            for _ in self.messages():
                pass
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
        stdout = self._process.stdout
        assert stdout is not None
        if select.select([stdout], [], [], 0 if is_gone else timeout_s)[0]:
            content = os.read(stdout.fileno(), 1 << 16)
            *lines, self._text = (self._text + content).split(b"\n")
            self._lines.extend(lines)
            is_gone = not content
        if is_gone:
            self.end = self.end or ChildEnd(None)


class ForkServers:
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.

    Attributes:
        folder: For the servers' pipes; removed if this process is killed.
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
            server.end()

    def fork(
        self,
        command: Sequence[str],
        request: Path,
        log: Path,
        environment: Mapping[str, str],
    ) -> ForkedCapture | None:
        """Serve a request in a fork; None if it needs a process of its own."""
        server = self.start(command, log, environment)
        return None if server is None else ForkedCapture(server, request)

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> ForkServer | None:
        """Start the server for an environment unless it runs; the arguments are as for ``fork``."""
        if sys.platform != "linux":
            return None
        key = frozenset(environment.items())
        if key not in self._servers and len(self._servers) == _MAX_SERVERS:
            return None
        server = self._servers.get(key)
        if server is None or server.child.end is not None:
            self._started += 1
            pipe = self.folder / f"requests-{self._started}"
            server = ForkServer(command, pipe, log, environment)
            self._servers[key] = server
        return server


class ForkServer:
    """A process that serves each request in a fork of itself.

    Attributes:
        child: The process.
        is_busy: Whether a fork runs, or the process is still starting.
    """

    def __init__(
        self, command: Sequence[str], pipe: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        os.mkfifo(pipe)
        self._path = pipe
        self.is_busy = True
        self._pipe = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        self.child = Child([*command, str(pipe)], log, pipe.parent, environment)

    def send(self, request: Path) -> None:
        """Let a fork serve a request file."""
        self.child.deadline_s = float("inf")
        self.is_busy = True
        os.write(self._pipe, os.fsencode(request) + b"\n")

    def end(self) -> None:
        """End the server and a running fork; an idle server ends when its pipe closes."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            if not self.is_busy:
                self.child.deadline_s = time.monotonic() + _END_S
                for _ in self.child.messages():
                    pass
            self.child.close()
            self._path.unlink(missing_ok=True)


class ForkedCapture:
    """A fork of a server that serves one request; has the methods of ``Child``.

    Attributes:
        end: How it ended; None while it runs.
    """

    def __init__(self, server: ForkServer, request: Path) -> None:
        self.end: ChildEnd | None = None
        self._server = server
        self._child = server.child
        server.send(request)

    @property
    def deadline_s(self) -> float:
        """Value of ``time.monotonic`` at which ``messages`` stops."""
        return self._child.deadline_s

    @deadline_s.setter
    def deadline_s(self, instant_s: float) -> None:
        self._child.deadline_s = instant_s

    def messages(self) -> Iterator[Message]:
        """Yield the fork's messages until it ends or ``deadline_s`` comes."""
        for message in self._child.messages():
            if isinstance(message, CopyEnd):
                self.end = ChildEnd(message.code, message.peak_rss_bytes)
                self._server.is_busy = False
                return
            yield message
        self.end = self._child.end

    def interrupt(self) -> None:
        """End the server: the user has interrupted the whole series of captures."""
        self._server.end()

    def close(self) -> None:
        """End the server if the fork still runs or the server has ended."""
        if self.end is None or self._child.end is not None:
            self._server.end()
