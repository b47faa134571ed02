"""The process between a command and its child: ends the child and everything that it started.

``python -I -S supervisor.py FOLDER COMMAND …`` runs the command. When it and all its descendants are
gone, it writes a line of JSON to standard output. Orders are single bytes on standard input; its end
means that the caller is gone, perhaps by ``kill -9``: then everything is ended and FOLDER removed. On
Linux an orphan becomes a child of this process (``PR_SET_CHILD_SUBREAPER``), even in another session;
elsewhere the child's process group is ended. Standard library only, nothing from the working folder.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

INTERRUPT = b"i"  # pass Ctrl-C on to the child
END = b"e"  # end the child and all its descendants
_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_ENDS = (
    signal.SIGINT,
    signal.SIGTERM,
    getattr(signal, "SIGHUP", signal.SIGTERM),
)  # not on Windows
_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_MAX_KILL_S = 5.0  # for a process in uninterruptible sleep, which cannot be killed
_PAUSE_S = 0.01  # between two checks


class Supervised:
    """The child (return code None while it runs) and its descendants."""

    def __init__(self, command: list[str]) -> None:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self.pid = child.pid
        self.code: int | None = None

    def reap(self) -> None:
        """Reap the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid == self.pid:
                    self.code = os.waitstatus_to_exitcode(status)

    def list_running(self) -> list[int]:
        """Return the running descendants; the process group where there is no ``/proc``."""
        if os.path.isdir("/proc/self/task"):
            return list(list_descendants(os.getpid()))
        with contextlib.suppress(OSError):
            os.killpg(self.pid, 0)
            return [-self.pid]
        return []


def end_all(list_running: Callable[[], list[int]], reap: Callable[[], None]) -> None:
    """Terminate processes, and kill those that still run after a second."""
    started_s = time.monotonic()
    terminated: set[int] = set()
    while True:
        reap()
        running = list_running()
        elapsed_s = time.monotonic() - started_s
        if not running or elapsed_s > _GRACE_S + _MAX_KILL_S:
            reap()
            return
        for pid in running:
            if elapsed_s >= _GRACE_S:
                _send(pid, signal.SIGKILL)
            elif pid not in terminated:
                _send(pid, signal.SIGTERM)
                terminated.add(pid)
        time.sleep(_PAUSE_S)


def list_descendants(pid: int) -> Iterator[int]:
    """Yield the running descendants of ``pid``, from Linux' ``/proc``."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                # "pid (name) state ppid …"; the name may contain anything
                state, parent = file.read().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append((int(name), state))

    waiting = [pid]
    while waiting:
        for child, state in children.get(waiting.pop(), ()):
            waiting.append(child)
            if state not in "ZX":  # zombie, dead
                yield child


def main(folder: str, command: list[str]) -> None:
    """Run ``command`` until it ends or an order or signal ends it; see the module."""
    signals, write = (
        os.pipe()
    )  # a byte for each signal: a child's end, or an end signal
    os.set_blocking(write, False)
    for number in (*_ENDS, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(write)
    adopt_orphans()

    child = Supervised(command)
    has_caller = _watch(child, signals)
    end_all(child.list_running, child.reap)
    if not has_caller:
        shutil.rmtree(folder, ignore_errors=True)
        return
    # `ChildEnd` of model/contract, written by hand: only the standard library is available.
    ended = json.dumps({"message": "ended", "code": child.code})
    with contextlib.suppress(OSError):
        os.write(1, f"\n{ended}\n".encode())  # the child's last line may be unfinished


def _watch(child: Supervised, signals: int) -> bool:
    """Wait for the child's end or an order to end it; return False if the caller is gone."""
    while child.code is None:
        ready, _, _ = select.select([0, signals], [], [])
        if signals in ready and set(os.read(signals, 64)) & set(_ENDS):
            return True
        child.reap()
        if 0 in ready:
            order = os.read(0, 1)
            if order != INTERRUPT:
                return order == END
            _send(child.pid, signal.SIGINT)  # Ctrl-C, to the child alone
    return True


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, if the system can."""
    _set_process(_PR_SET_CHILD_SUBREAPER, 1)


def _die_with_parent() -> None:
    """Reset signals between fork and exec, and let the system kill the child with this process."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    _set_process(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _set_process(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
