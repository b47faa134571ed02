"""Captures in forks of child processes that have imported TensorFlow once.

The import takes more than half of a small capture; ``fork_worker`` is the other end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from analyzer.capture.process.child_process import Child, make_start_command
from analyzer.model.contract.child_messages import ChildEnd, CopyEnd, Message

_MAX_SERVERS: Final = 2  # at once; each holds all of TensorFlow
_END_S: Final = 15.0  # for an idle server to end


class ForkServer:
    """A child that serves each request in a fork of itself; requests go through a named pipe."""

    def __init__(self, pipe: Path, log: Path, environment: Mapping[str, str]) -> None:
        os.mkfifo(pipe)
        self._path = pipe
        self._pipe = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        command = make_start_command("process.fork_worker", str(pipe))
        self.child = Child(command, log, pipe.parent, environment)
        self.is_over = False

    def serve(self, request: Path) -> Fork:
        """Let a fork serve a request file."""
        os.write(self._pipe, os.fsencode(request) + b"\n")
        return Fork(self)

    def stop(self, *, is_idle: bool = True) -> None:
        """End the server; an idle one ends by itself when its pipe closes."""
        if self.is_over:
            return
        self.is_over = True
        os.close(self._pipe)
        if is_idle:
            self.child.limit_time(_END_S)
            for _ in self.child.messages():
                pass
        self.child.close()
        self._path.unlink(missing_ok=True)


class Fork:
    """One capture in a fork of a server; used like a ``Child``."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._child = server.child
        self.end: ChildEnd | None = None  # None while it runs

    def limit_time(self, seconds: float) -> None:
        """Let ``messages`` stop after some seconds from now."""
        self._child.limit_time(seconds)

    def messages(self) -> Iterator[Message]:
        """Yield the fork's messages until it ends or its time is over."""
        for message in self._child.messages():
            if isinstance(message, CopyEnd):
                self.end = ChildEnd(message.code)
                return
            yield message
        self.end = self._child.end

    def interrupt(self) -> None:
        """End the server: the user has interrupted the whole series of captures."""
        self._server.stop(is_idle=False)

    def close(self) -> None:
        """End the server if the fork still runs or the server has ended."""
        if self.end is None or self._child.end is not None:
            self._server.stop(is_idle=False)
            self.end = self._child.end


class ForkServers(contextlib.AbstractContextManager["ForkServers"]):
    """Fork servers, one for each environment, that end with the ``with`` block.

    There are none outside Linux, because only there a fork can be made to end with its parent.
    ``folder`` holds the servers' pipes; it is removed if this process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.needs_whole_pool = (
            False  # whether a step has needed the whole memory of a large card
        )
        self._servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self._started = 0

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            server.stop()

    def start(self, log: Path, environment: Mapping[str, str]) -> ForkServer | None:
        """Return the server for an environment; None if the capture needs a process of its own."""
        key = frozenset(environment.items())
        server = self._servers.get(key)
        if server is not None and not server.is_over:
            return server
        is_full = server is None and len(self._servers) == _MAX_SERVERS
        if sys.platform != "linux" or is_full:
            return None

        self._started += 1
        pipe = self.folder / f"requests-{self._started}"
        server = ForkServer(pipe, log, environment)
        self._servers[key] = server
        return server
