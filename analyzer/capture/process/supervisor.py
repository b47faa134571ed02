"""The process between a command and the child that runs TensorFlow: nothing of the child outlives it.

``python -I -S supervisor.py FOLDER COMMAND …`` runs the command and writes one line of JSON to
standard output when it and all that it started are gone. Orders come as single bytes on standard
input. The end of standard input means that whoever gave them is gone, by ``kill -9`` perhaps: then
everything is ended and FOLDER removed.

On Linux a process whose parent has ended becomes a child of this one (``PR_SET_CHILD_SUBREAPER``), in
whatever session it is: so all can be found. Elsewhere the child's process group is ended. Only the
standard library is needed, and nothing is imported from the working folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

INTERRUPT = b"i"
"""Pass Ctrl-C on to the child."""
END = b"e"
"""End the child and all that it started."""

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 1.0  # between asking a process to end and ending it
_LONGEST_S = 5.0  # a process that cannot be killed (uninterruptible sleep) is given up on
_PAUSE_S = 0.01  # seconds between two looks at what still runs
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage(2)


class Supervised:
    """The child, and whatever it starts.

    Attributes:
        pid: The child's number.
        code: How it ended as ``subprocess`` tells it, None while it runs.
        peak_rss_bytes: The most memory that the child held itself.
    """

    def __init__(self, command: list[str]) -> None:
        self.pid = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        ).pid
        self.code: int | None = None
        self.peak_rss_bytes = 0

    def reap(self) -> None:
        """Reap the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.code = os.waitstatus_to_exitcode(status)
                    self.peak_rss_bytes = usage.ru_maxrss * _RSS_UNIT_BYTES

    def interrupt(self) -> None:
        """Send Ctrl-C to the child alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def end(self, grace_s: float) -> None:
        """Ask everything that still runs to end, and end it after ``grace_s``."""
        end_all(self._left, self.reap, grace_s)

    def _left(self) -> list[int]:
        """Return what still runs."""
        if os.path.isdir("/proc/self/task"):
            return list(descendants(os.getpid()))
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return []
        return [-self.pid]


def end_all(left: Callable[[], list[int]], reap: Callable[[], None], grace_s: float) -> None:
    """Ask processes to end, and end them after a while.

    Args:
        left: Returns those that still run; a negative number is a group.
        reap: Called before each look, to reap children that have ended.
        grace_s: Seconds between asking and ending.
    """
    started = time.monotonic()
    asked: set[int] = set()
    while (gone_s := time.monotonic() - started) < grace_s + _LONGEST_S:
        reap()
        running = left()
        if not running:
            reap()
            return
        for pid in running:
            if gone_s >= grace_s:
                _send(pid, signal.SIGKILL)
            elif pid not in asked:
                _send(pid, signal.SIGTERM)
                asked.add(pid)
        time.sleep(_PAUSE_S)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below ``pid`` that have not ended, as Linux lists them."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                # "pid (name) state ppid …", where the name may hold anything
                state, parent = file.read().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append((int(name), state))
    waiting = [pid]
    while waiting:
        for found, state in children.get(waiting.pop(), ()):
            waiting.append(found)
            if state not in "ZX":  # zombie, dead
                yield found


def main(folder: str, command: list[str]) -> None:
    """Run ``command`` to its end, or until it is to end; see the module."""
    signals = _signals()
    adopt_orphans()
    child = Supervised(command)
    if not _watch(child, signals):
        child.end(0.0)
        remove_temporaries(child.pid)
        shutil.rmtree(folder, ignore_errors=True)
        return
    child.end(_GRACE_S)
    remove_temporaries(child.pid)
    # `ChildEnd` of model/contract/child_messages.py, written by hand: only the standard library is here.
    ended = {"message": "ended", "code": child.code, "peak_rss_bytes": child.peak_rss_bytes}
    with contextlib.suppress(OSError):
        os.write(1, f"\n{json.dumps(ended)}\n".encode())  # a line may be left unfinished


def _watch(child: Supervised, signals: int) -> bool:
    """Wait for the child's end or an order to end it; return False where nobody waits any more."""
    while child.code is None:
        ready, _, _ = select.select([0, signals], [], [])
        if signals in ready and set(os.read(signals, 64)) & set(_ENDS):
            return True
        child.reap()
        if 0 in ready:
            order = os.read(0, 1)
            if order == INTERRUPT:
                child.interrupt()
            else:
                return order == END
    return True


def _signals() -> int:
    """Return a descriptor that a byte comes from for each signal: a child's end, or a wish for ours."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in (*_ENDS, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(write)
    return read


def remove_temporaries(pid: int) -> None:
    """Remove TensorFlow's temporary files of a process that is gone: one that was killed leaves them.

    They are named after the machine, the thread, the process and the time (``Env::CreateUniqueFileName``
    in ``tsl/platform/env.cc``), and lie in the first of these folders that there is
    (``Env::GetLocalTempDirectories``).
    """
    name = f"tempfile-{glob.escape(os.uname().nodename)}-*-{pid}-*"
    for folder in (*map(os.environ.get, ("TEST_TMPDIR", "TMPDIR", "TMP")), "/tmp"):
        for path in glob.glob(os.path.join(glob.escape(folder), name)) if folder else ():
            with contextlib.suppress(OSError):
                os.unlink(path)


def adopt_orphans() -> None:
    """Let processes whose parent has ended become children of this one, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _die_with_parent() -> None:
    """Between fork and exec: undo what is ours, and end with this process however that ends."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
