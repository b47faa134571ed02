"""The child of a fork server: imports TensorFlow once, and serves each capture in a fork of itself.

A fork is safe at that point: TensorFlow has not computed anything, and its only threads are of NumPy's
OpenBLAS and jemalloc, which release their locks at a fork. Requests are paths, one a line.
"""

import faulthandler
import os
import warnings
from pathlib import Path

from analyzer.capture.process import capture_worker
from analyzer.capture.process.capture_worker import Channel
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.process.supervisor import end_all, list_descendants
from analyzer.model.contract.child_messages import CopyEnd
from analyzer.model.errors import AnalyzerError
from analyzer.model.interrupts import (
    die_with_parent,
    freeze_loaded_objects,
    pause_collector,
)


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
            _, status = os.waitpid(pid, 0)
            end_all(_list_leftovers, lambda: None)
            channel.send(CopyEnd(os.waitstatus_to_exitcode(status)))
    os._exit(0)  # freeing TensorFlow's million objects takes more than a second


def _serve_in_fork(request: Path, places: list[str], channel: Channel) -> int:
    """Serve a request file, with output to the log in its folder; return the exit code."""
    die_with_parent()
    log = os.open(
        request.with_name(LOG_FILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
    )
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    return capture_worker.serve(str(request), places, channel)


def _list_leftovers() -> list[int]:
    """Return the processes that a fork left running, which are now children of the supervisor."""
    return [pid for pid in list_descendants(os.getppid()) if pid != os.getpid()]
