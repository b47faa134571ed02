"""The child process that has imported TensorFlow, and does each capture asked for in a copy of itself.

Importing TensorFlow takes more than half of a small capture. Where several are asked for of one target
it is imported once: nothing of it has begun to compute then, no device is known, and its threads are
those of NumPy's OpenBLAS and of jemalloc, which both hand over their locks at a fork. A copy does what
:mod:`analyzer.capture.process.capture_worker` does in a process of its own, and ends with it.

Requests come as paths, a line each, through a named pipe; whoever writes there is gone when it ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Final

from analyzer.capture.process import capture_worker
from analyzer.capture.process.capture_worker import Channel
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.process.supervisor import descendants, end_all, remove_temporaries
from analyzer.contract.messages.child_messages import CopyEnd
from analyzer.errors import AnalyzerError
from analyzer.gc_pause import collector_paused

_GRACE_S: Final = 1.0  # between asking what a copy left running to end and ending it
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def main(pipe: str, places: list[str]) -> int:
    """Import TensorFlow, then serve requests until nobody asks any more; return the exit code.

    Args:
        pipe: The named pipe.
        places: ``sys.path`` for the user's code.
    """
    faulthandler.enable()
    channel = Channel()
    channel.report("starting TensorFlow", 0.0)
    try:
        with collector_paused():
            capture_worker.import_all()
    except AnalyzerError as error:
        return channel.fail(error)
    with Path(pipe).open("rb", buffering=0) as requests:
        for line in requests:
            request = Path(os.fsdecode(line.rstrip(b"\n")))
            copy = _fork()
            if not copy:
                return _in_copy(request, places, channel)
            _, status, usage = os.wait4(copy, 0)
            _end_leftovers()
            remove_temporaries(copy)
            code = os.waitstatus_to_exitcode(status)
            channel.send(CopyEnd(code, usage.ru_maxrss * 1024))
    return 0


def _fork() -> int:
    """Fork; the threads that there are stand for the warning that Python has for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _in_copy(request: Path, places: list[str], channel: Channel) -> int:
    """Do what a request says, in a copy; return the exit code.

    Args:
        request: The request, a JSON file; what is printed goes to the log beside it.
        places: ``sys.path`` for the user's code.
        channel: Messages to the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(request.with_name(LOG_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    return capture_worker.main(str(request), places, channel.of_this_process())


def _end_leftovers() -> None:
    """End what a copy started and left running: the supervisor has taken it on."""

    def left() -> list[int]:
        return [pid for pid in descendants(os.getppid()) if pid != os.getpid()]

    end_all(left, lambda: time.sleep(0), _GRACE_S)
