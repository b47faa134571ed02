"""A child process under a supervisor: its messages, and its end, whatever that is.

Several captures may be copies of one such process (``fork_server``).
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

_LOOK_S: Final = 0.5  # how often it is looked whether the supervisor itself is gone
_PIPE: Final = "requests"  # of a process that is copied
_MOST_COPIED: Final = 2  # of one environment each: each holds all of TensorFlow
_END_S: Final = 15.0  # more than a supervisor takes that cannot kill what it should


class Child:
    """A command that tells what it does and how it went (``messages``).

    It runs in a session of its own, so that a terminal's Ctrl-C reaches it only through
    ``interrupt``.

    Attributes:
        end: How it ended; None while it runs.
        deadline_s: The instant of ``monotonic`` at which it is no longer listened to.

    Args:
        command: What to run.
        log: Where everything else goes that it prints.
        folder: Removed when this process ends without a word.
        environment: Its environment variables.
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
        """Yield what the child says until it has ended, or ``deadline_s`` has come."""
        while self.end is None and (left_s := self.deadline_s - time.monotonic()) > 0:
            if not self._lines:
                self._listen(min(_LOOK_S, left_s))
                continue
            message = parse_message(self._lines.popleft())
            if isinstance(message, ChildEnd):
                self.end = message
            elif message is not None:
                yield message

    def interrupt(self) -> None:
        """Pass Ctrl-C on to it."""
        self._order(supervisor.INTERRUPT)

    def close(self) -> None:
        """End it and all that it started, where that has not happened; then let go of it."""
        with delay_signals():
            self._order(supervisor.END)
            self.deadline_s = time.monotonic() + _END_S
            for _ in self.messages():
                pass  # nobody listens any more
            with contextlib.suppress(OSError):
                self._process.stdin.close()  # type: ignore[union-attr]
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the child is ended with it, by the system
                self._process.wait()
            self._process.stdout.close()  # type: ignore[union-attr]

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), order)  # type: ignore[union-attr]

    def _listen(self, patience_s: float) -> None:
        """Read messages for up to ``patience_s`` seconds; set the ending where none can follow."""
        # Not to the end of the pipe: some process that was started by the child may hold it open.
        gone = self._process.poll() is not None
        stdout = self._process.stdout
        assert stdout is not None
        if select.select([stdout], [], [], 0 if gone else patience_s)[0]:
            got = os.read(stdout.fileno(), 1 << 16)
            *lines, self._text = (self._text + got).split(b"\n")
            self._lines.extend(lines)
            gone = not got
        if gone:
            self.end = self.end or ChildEnd(None)


class ForkServers:
    """Processes that are started at the first capture in their environment, and ended with the block.

    Where the system does not tell how to let a copy end with its parent, there are none, and each
    capture has a process of its own.

    Attributes:
        folder: Where their pipes may be made; removed with all in it when this process ends without a
            word.

    Args:
        folder: That folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._copied: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self._started = 0

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for copied in self._copied.values():
            copied.end()

    def copy(
        self,
        command: Sequence[str],
        request: Path,
        log: Path,
        environment: Mapping[str, str],
    ) -> ForkedCapture | None:
        """Let a copy do what a request says; None where it needs a process of its own.

        Args:
            command: What starts the process; the pipe's path is added.
            request: The request's path.
            log: Where everything else goes that is printed.
            environment: The environment variables.
        """
        copied = self.begin(command, log, environment)
        return None if copied is None else ForkedCapture(copied, request)

    def begin(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> ForkServer | None:
        """Start the process of an environment where it does not run; None where there can be none.

        Args:
            command: What starts it; the pipe's path is added.
            log: Where everything goes that it prints itself.
            environment: The environment variables.
        """
        if sys.platform != "linux":
            return None
        key = frozenset(environment.items())
        if key not in self._copied and len(self._copied) == _MOST_COPIED:
            return None
        copied = self._copied.get(key)
        if copied is None or copied.child.end is not None:
            self._started += 1
            pipe = self.folder / f"{_PIPE}-{self._started}"
            copied = ForkServer(command, pipe, log, environment)
            self._copied[key] = copied
        return copied


class ForkServer:
    """A process that does what it is asked for in copies of itself.

    Attributes:
        child: The process.
        is_busy: Whether a copy runs, or the process has not come to its first one.

    Args:
        command: What starts it; the pipe's path is added.
        pipe: Where it is asked.
        log: Where everything goes that it prints itself.
        environment: Its environment variables.
    """

    def __init__(
        self, command: Sequence[str], pipe: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        os.mkfifo(pipe)
        self._path = pipe
        self.is_busy = True
        self._pipe = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        self.child = Child([*command, str(pipe)], log, pipe.parent, environment)

    def ask(self, request: Path) -> None:
        """Let a copy do what a request says."""
        self.child.deadline_s = float("inf")
        self.is_busy = True
        os.write(self._pipe, os.fsencode(request) + b"\n")

    def end(self) -> None:
        """End it, and the copy that still runs; one that does nothing ends by itself."""
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
    """A copy of a process, as ``Child`` is a whole one.

    Attributes:
        end: How it ended; None while it runs.

    Args:
        copied: What it is a copy of.
        request: The path of what it is asked for.
    """

    def __init__(self, copied: ForkServer, request: Path) -> None:
        self.end: ChildEnd | None = None
        self._copied = copied
        self._child = copied.child
        copied.ask(request)

    @property
    def deadline_s(self) -> float:
        """The instant of ``monotonic`` at which it is no longer listened to."""
        return self._child.deadline_s

    @deadline_s.setter
    def deadline_s(self, instant_s: float) -> None:
        self._child.deadline_s = instant_s

    def messages(self) -> Iterator[Message]:
        """Yield what the copy says until it has ended, or ``deadline_s`` has come."""
        for message in self._child.messages():
            if isinstance(message, CopyEnd):
                self.end = ChildEnd(message.code, message.peak_rss_bytes)
                self._copied.is_busy = False
                return
            yield message
        self.end = self._child.end

    def interrupt(self) -> None:
        """End it: several captures are of a question that is not answered then."""
        self._copied.end()

    def close(self) -> None:
        """Let go of it; where it has not ended, or its process has, end all."""
        if self.end is None or self._child.end is not None:
            self._copied.end()
