"""Signals that end a command: raised as exceptions, held back while something is tidied up.

Ctrl-C, a plain ``kill``, a closed terminal: each one unwinds the stack, so that whoever started a
process or made a temporary file ends it or removes it. What is being tidied up when another signal
comes is finished first.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

_UNIX_ENDS: Final = ("SIGTERM", "SIGHUP")
ENDING: Final = (
    signal.SIGINT,
    *(getattr(signal, name) for name in _UNIX_ENDS if hasattr(signal, name)),
)
"""The signals that ask a process to end and let it do so itself."""

EXIT_BASE: Final = 128
"""A shell's exit status of a process that a signal ended is this plus the signal's number."""


class Terminated(BaseException):
    """The process was asked to end by a signal other than Ctrl-C.

    No ``Exception``, for the same reason as ``KeyboardInterrupt``: nobody is to carry on.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """The signal's name, such as SIGTERM."""
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """What a shell calls this end: 143 for SIGTERM, 129 for SIGHUP."""
        return EXIT_BASE + self.number


@contextlib.contextmanager
def raise_on_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Raise each signal that ends a process as an exception in the block.

    Signals that are ignored when the block begins stay so (``nohup``, a shell's background job).
    Outside the main thread nothing is changed.

    Args:
        told: Called with the signal at once, before it is raised.
    """

    def end(number: int, frame: FrameType | None) -> None:
        told(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(number)

    with _handlers(end):
        yield


@contextlib.contextmanager
def delay_signals() -> Iterator[None]:
    """Let a signal that ends the process wait until the block is done; the first one is then raised."""
    waiting: list[int] = []
    try:
        with _handlers(lambda number, frame: waiting.append(number)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Set a handler for the signals that end a process, but for those ignored; set back after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {}
    try:
        for number in ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                earlier[number] = signal.signal(number, handler)
        yield
    finally:
        for number, old in earlier.items():
            signal.signal(number, old)


_PR_SET_PDEATHSIG: Final = 1
"""Linux: the signal that a process gets when its parent ends (``prctl(2)``)."""


def die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it is gone; elsewhere do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
