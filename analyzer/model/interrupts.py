"""Signals that end a process, raised or delayed; and control of the garbage collector.

Ctrl-C, ``kill`` and a closed terminal unwind the stack, so that child processes are ended and
temporary files are removed. A second signal does not interrupt a cleanup that has begun.
"""

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# The signals that ask a process to end.
ENDING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
)

EXIT_BASE = 128  # a shell's exit status: this plus the number of the signal
# option of ``prctl(2)``: the signal sent when the parent ends
_PR_SET_PDEATHSIG = 1

_Handler = Callable[[int, FrameType | None], None]


class Terminated(BaseException):
    """A signal other than Ctrl-C asked the process to end; no ``Exception``, like KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """The signal's name, such as SIGTERM."""
        return signal.Signals(self.number).name

    @property
    def exit_code(self) -> int:
        """The exit status that a shell reports: 143 for SIGTERM, 129 for SIGHUP."""
        return EXIT_BASE + self.number


@contextmanager
def raise_on_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call ``on_signal``, then raise each signal that ends a process as an exception in the block.

    Ignored signals stay ignored (``nohup``). Outside the main thread the block changes nothing.
    """

    def end(number: int, frame: FrameType | None) -> None:
        on_signal(number)

        if number == signal.SIGINT:
            raise KeyboardInterrupt

        raise Terminated(number)

    with _handlers(end):
        yield


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delay signals that end the process until the block is done; then raise the first one."""
    waiting = []

    try:
        with _handlers(lambda number, frame: waiting.append(number)):
            yield
    finally:
        if waiting:
            signal.raise_signal(waiting[0])


# Ctrl-C within this time after another one is a repetition: ``timeout`` signals a program twice.
REPEAT_S = 0.5


@contextmanager
def _handlers(handler: _Handler) -> Iterator[None]:
    """Handle these signals, except ignored ones, inside the block of the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    ignored = (signal.SIG_IGN, None)
    handled = [
        number
        for number in ENDING
        if is_main and signal.getsignal(number) not in ignored
    ]

    earlier = {}

    try:
        for number in handled:
            earlier[number] = signal.signal(number, handler)

        yield
    finally:
        for number, old in earlier.items():
            signal.signal(number, old)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; do nothing on other systems."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# Collector thresholds of a command, which ends within seconds; Python's are (700, 10, 10).
_THRESHOLDS = (50_000, 20, 20)


def collect_rarely() -> None:
    """Make collections rare in this process. Call it only in a process of the package."""
    gc.set_threshold(*_THRESHOLDS)


def freeze_loaded_objects() -> None:
    """Exclude all present objects, such as TensorFlow's modules, from future collections."""
    gc.freeze()


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the collector inside the block and restore its state afterwards."""
    was_on = gc.isenabled()
    gc.disable()

    try:
        yield
    finally:
        if was_on:
            gc.enable()
