"""The child process that has imported TensorFlow, and does each capture asked for in a copy of itself.

Importing TensorFlow takes more than half of a small capture. Where several are asked for of one target
it is imported once: nothing of it has begun to compute then, no device is known, and its threads are
those of NumPy's OpenBLAS and of jemalloc, which both hand over their locks at a fork. A copy does what
``capture_worker`` does in a process of its own, and ends with it.

Requests come as paths, a line each, through a named pipe; whoever writes there is gone when it ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Final

from analyzer.capture.process import capture_worker
from analyzer.capture.process.capture_worker import Channel
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.process.supervisor import descendants, end_all, remove_temporaries
from analyzer.model.contract.child_messages import CopyEnd
from analyzer.model.errors import AnalyzerError
from analyzer.model.gc_pause import freeze_loaded_objects, pause_collector

_GRACE_S: Final = 1.0  # between asking what a copy left running to end and ending it
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_PAGE: Final = 4096  # bytes
_PROGRAM_PAGES: Final = 1 << 13
"""Pages that the end of the heap may be moved by: as far as Linux moves it (``arch_randomize_brk``)."""

_MAPPED_PAGES: Final = 1 << 22
"""The same of what is mapped."""

_HOLES: Final = tuple(1 << power for power in range(13, 4, -1))
"""Sizes of the holes in the heap that are filled, bytes; a graph's edges lie in pieces of 8 KiB."""

_MOST_HOLES: Final = 20_000  # of one size


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
        with pause_collector():
            capture_worker.import_all()
            freeze_loaded_objects()
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
    os._exit(0)  # taking a million objects of TensorFlow's modules apart takes a second and more


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
    _elsewhere()
    return capture_worker.main(str(request), places, channel.of_this_process())


def _elsewhere() -> None:
    """Let what this copy allocates lie where it does in no other, as in a process of its own.

    The order of a graph's ops follows the addresses of its edges, and which tensors are swapped to the
    host those of its nodes. The end of the heap and the place of new mappings are moved by chance, and
    the holes that importing left in the heap are filled.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    chance = random.SystemRandom()
    end = libc.sbrk(_PAGE * (1 + chance.randrange(_PROGRAM_PAGES)))
    for size in _HOLES:
        for _ in range(_MOST_HOLES):
            if (libc.malloc(size) or end) >= end:
                break
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    libc.mmap(None, _PAGE * (1 + chance.randrange(_MAPPED_PAGES)), 0, flags, -1, 0)


def _end_leftovers() -> None:
    """End what a copy started and left running: the supervisor has taken it on."""

    def left() -> list[int]:
        return [pid for pid in descendants(os.getppid()) if pid != os.getpid()]

    end_all(left, lambda: time.sleep(0), _GRACE_S)
