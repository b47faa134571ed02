"""The child of a fork server: imports TensorFlow once, and serves each capture in a fork of itself.

A fork is safe at that point: TensorFlow has not computed anything, and its only threads are of NumPy's
OpenBLAS and jemalloc, which release their locks at a fork. Requests are paths, one a line.
"""

import faulthandler
import os
import queue
import warnings
from pathlib import Path

from analyzer.capture.process import capture_worker
from analyzer.capture.process.capture_worker import Channel
from analyzer.capture.process.child_process import end_with_parent
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.model.contract.child_messages import CopyEnd
from analyzer.model.errors import AnalyzerError
from analyzer.model.interrupts import (
    die_with_parent,
    freeze_loaded_objects,
    pause_collector,
)


def main(folder: str, places: list[str], modules: frozenset[str]) -> int:
    """Import TensorFlow, then serve requests until the parent ends; return the exit code."""
    faulthandler.enable()

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    end_with_parent(Path(folder), requests.put)
    channel = Channel()
    channel.report("starting TensorFlow")

    try:
        with pause_collector():
            capture_worker.import_all()
            freeze_loaded_objects()
    except AnalyzerError as error:
        return channel.fail(error)

    while True:
        request = Path(os.fsdecode(requests.get()))
        with warnings.catch_warnings():  # Python warns of forks with threads
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()

        if not pid:
            return _serve_in_fork(request, places, channel)

        _, status = os.waitpid(pid, 0)
        channel.send(CopyEnd(os.waitstatus_to_exitcode(status)))


def _serve_in_fork(request: Path, places: list[str], channel: Channel) -> int:
    """Serve a request file, with output to the log in its folder; return the exit code."""
    die_with_parent()

    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(request.with_name(LOG_FILE), flags, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)

    return capture_worker.serve(str(request), places, channel)
