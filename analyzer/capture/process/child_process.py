"""A child process under a supervisor: its messages and its end."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from analyzer.capture.process import supervisor
from analyzer.model.contract.child_messages import ChildEnd, Message, parse_message
from analyzer.model.interrupts import delay_signals

_POLL_S: Final = 0.5  # interval of checks whether the supervisor itself is gone
_END_S: Final = (
    15.0  # longer than a supervisor needs, even if a process cannot be killed
)


class Child:
    """A supervised command that reports its progress as messages.

    It runs in a session of its own, so that a terminal's Ctrl-C reaches it only through
    ``interrupt``. ``messages`` stops when the time of ``limit_time`` is over.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.end: ChildEnd | None = None  # None while it runs
        self._deadline_s = math.inf
        self._text = b""
        with log.open("ab") as log_file:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    supervisor.__file__,
                    str(folder),
                    *command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=dict(environment),
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = (
            process,
            process.stdin,
            process.stdout,
        )

    def limit_time(self, seconds: float) -> None:
        """Let ``messages`` stop after some seconds from now."""
        self._deadline_s = time.monotonic() + seconds

    def messages(self) -> Iterator[Message]:
        """Yield the child's messages until it ends or its time is over."""
        while self.end is None:
            line, newline, rest = self._text.partition(b"\n")
            if not newline:
                left_s = self._deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._read(min(_POLL_S, left_s))
                continue
            self._text = rest
            message = parse_message(line)
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
            self.limit_time(_END_S)
            for _ in self.messages():
                pass
            with contextlib.suppress(OSError):
                self._stdin.close()
            try:
                self._process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the system kills the child with it
                self._process.wait()
            self.end = self.end or ChildEnd(None)
            self._stdout.close()

    def _send(self, order: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(self._stdin.fileno(), order)

    def _read(self, timeout_s: float) -> None:
        """Read output for up to ``timeout_s``; set ``end`` if none can follow."""
        # Not to the end of the pipe: a process that the child started may hold it open.
        is_gone = self._process.poll() is not None
        wait_s = 0 if is_gone else timeout_s
        if select.select([self._stdout], [], [], wait_s)[0]:
            content = os.read(self._stdout.fileno(), 1 << 16)
            self._text += content
            is_gone = not content
        if is_gone:
            self.end = ChildEnd(None)


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
