"""A child process that imports TensorFlow once and serves each capture in a fork of itself.

The import takes more than half of a small capture. A fork is safe at that point: TensorFlow has not
computed anything, and its only threads are of NumPy's OpenBLAS and jemalloc, which release their locks
at a fork. Requests are paths, one a line, through a named pipe; the server ends when it is closed.
"""

import ctypes
import faulthandler
import mmap
import os
import random
import warnings
from pathlib import Path
from typing import Final

from analyzer.capture.process import capture_worker
from analyzer.capture.process.capture_worker import Channel
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.process.supervisor import end_all, list_descendants
from analyzer.model.contract.child_messages import CopyEnd
from analyzer.model.errors import AnalyzerError
from analyzer.model.interrupts import die_with_parent, freeze_loaded_objects, pause_collector

_GRACE_S: Final = 1.0  # between SIGTERM and SIGKILL for processes that a fork left running
_PAGE: Final = 4096  # bytes
_HEAP_PAGES: Final = 1 << 13  # random shift of the heap's end, as ``arch_randomize_brk``
_MAPPED_PAGES: Final = 1 << 22  # range of the random shift of new mappings
_HOLE_SIZES: Final = tuple(1 << power for power in range(13, 4, -1))
"""Sizes of the free pieces of heap to fill, bytes; a graph's edges lie in pieces of 8 KiB."""
_MAX_HOLES: Final = 20_000  # of one size


def main(pipe: str, places: list[str], modules: frozenset[str]) -> int:
    """Import TensorFlow, then serve requests until the pipe closes; return the exit code."""
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
            with warnings.catch_warnings():  # Python warns of forks with threads
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                return _serve_in_fork(request, places, channel)
            _, status, usage = os.wait4(pid, 0)
            end_all(_list_leftovers, lambda: None, _GRACE_S)
            channel.send(CopyEnd(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024))
    os._exit(0)  # freeing TensorFlow's million objects takes more than a second


def _serve_in_fork(request: Path, places: list[str], channel: Channel) -> int:
    """Serve a request file, with output to the log in its folder; return the exit code."""
    die_with_parent()
    log = os.open(request.with_name(LOG_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    _randomize_addresses()
    return capture_worker.serve(str(request), places, channel)


def _randomize_addresses() -> None:
    """Randomize the addresses of later allocations, as in a process of its own.

    The addresses of a graph's edges decide the order of its ops, and the addresses of its nodes decide
    the tensors to swap. So forks with equal addresses would not be independent samples.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    chance = random.SystemRandom()
    end = libc.sbrk(_PAGE * (1 + chance.randrange(_HEAP_PAGES)))
    for size in _HOLE_SIZES:
        for _ in range(_MAX_HOLES):
            if (libc.malloc(size) or end) >= end:
                break
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    libc.mmap(None, _PAGE * (1 + chance.randrange(_MAPPED_PAGES)), 0, flags, -1, 0)


def _list_leftovers() -> list[int]:
    """Return the processes that a fork left running, which are now children of the supervisor."""
    return [pid for pid in list_descendants(os.getppid()) if pid != os.getpid()]
