"""Run a user's script in a child that has this process' terminal, and wait for it. Needs no TensorFlow.

The child is in this process' group: Ctrl-C and Ctrl-Z of the terminal reach it as they would reach
``python script.py``. Signals that were sent to this process alone are passed on. When this process is
killed the script is, by the system; when the script was ended by a signal, so is all that it started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from analyzer.capture.process import child_environment as phantom
from analyzer.capture.process.child_environment import make_base_environment
from analyzer.capture.process.run_folders import check_writable, make_staging_folder, publish
from analyzer.capture.process.supervisor import adopt_orphans, end_all, list_descendants
from analyzer.capture.watch.watch_files import BEGUN_FILE, DUMP, FAULT_FILE, read_untraced
from analyzer.capture.xla.xla_dumps import add_dump_flags
from analyzer.model.contract.capture_request import TargetSpec, WatchRequest
from analyzer.model.contract.child_messages import write_message
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.interrupts import EXIT_BASE, die_with_parent
from analyzer.tracing.parse.logdir import RUN_FILE

_GRACE_S: Final = 1.0
_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FROM_KERNEL: Final = 0x80  # SI_KERNEL: the terminal's, which the child has got too
_START: Final = """\
import os, sys
before = frozenset(name.partition(".")[0] for name in sys.modules)
kept = [place for place in sys.path if place]
try:
    here = os.getcwd()
except OSError:
    here = ""
sys.path[:] = [place for place in kept if os.path.realpath(place) != here]
sys.path.append(sys.argv[1])
from analyzer.capture.watch.script_child import main
main(sys.argv[2], before, kept)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd:
    """How a script ended, and what is left of it.

    Attributes:
        status: Its exit status as a shell tells it.
        folder: The run folder; None where no step was traced.
        seen: What was seen where no step was traced; None where the script never got to say.
        has_tensorflow: The script imported TensorFlow.
        fault: What of ours went wrong while it ran; empty where nothing did.
        unread: Why the trace of its steps cannot be opened; empty where it can.
    """

    status: int
    folder: Path | None = None
    seen: WatchNote | None = None
    has_tensorflow: bool = False
    fault: str = ""
    unread: str = ""


def run_script(spec: TargetSpec, request: WatchRequest, out: Path, *, force: bool) -> ScriptEnd:
    """Run a script to its end.

    Args:
        spec: The script.
        request: How it is watched; its folder is chosen here.
        out: The run folder to make.
        force: Replace ``out`` where it holds an earlier run.

    Raises:
        InputError: ``out`` cannot be used, or the cards cannot be had.
    """
    check_writable(out, force=force)
    environment = make_base_environment(log_level=None)
    options = request.options
    with make_staging_folder(out) as staging:
        if options.gpu:
            environment |= phantom.make_card_environment(options, staging)
        elif options.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        environment["XLA_FLAGS"] = add_dump_flags(staging / DUMP, environment.get("XLA_FLAGS", ""))
        file = staging / "request.json"
        write_message(file, replace(request, folder=str(staging)))
        root = str(Path(__file__).parents[3])
        status = _wait_for([sys.executable, "-c", _START, root, str(file)], environment)
        file.unlink(missing_ok=True)
        for name in (DUMP, phantom.PHANTOM_FOLDER):
            shutil.rmtree(staging / name, ignore_errors=True)
        fault = _text_of(staging / FAULT_FILE)
        seen = read_untraced(staging)
        begun = (staging / BEGUN_FILE).exists()
        (staging / BEGUN_FILE).unlink(missing_ok=True)
        if not (staging / RUN_FILE).is_file() or not (staging / "plugins").is_dir():
            return ScriptEnd(status=status, seen=seen, has_tensorflow=begun, fault=fault)
        folder = publish(staging, out, force=force)
        return ScriptEnd(status=status, folder=folder, has_tensorflow=begun, fault=fault)


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        text = path.read_text("utf-8", "replace")
        path.unlink()
        return text
    return ""


def _wait_for(command: list[str], environment: dict[str, str]) -> int:
    """Run a command with this process' terminal; return its status as a shell tells it."""
    adopt_orphans()
    with _signals_waiting() as wait:
        child = subprocess.Popen(command, env=environment, preexec_fn=_as_started_by_a_shell)
        wait(child)
        code = child.returncode
        if code < 0:
            _end_descendants()
    return code if code >= 0 else EXIT_BASE - code


@contextlib.contextmanager
def _signals_waiting() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yield what waits for the child and passes on the signals that this process alone was sent."""
    if not hasattr(signal, "sigtimedwait"):
        yield _wait_plainly
        return
    watched = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def wait(child: subprocess.Popen[bytes]) -> None:
        while child.poll() is None:
            told = signal.sigtimedwait(watched, 0.5)
            if told is None or told.si_signo == signal.SIGCHLD:
                continue
            if told.si_code != _FROM_KERNEL:
                child.send_signal(told.si_signo)

    try:
        yield wait
    finally:
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # what came meanwhile was the child's
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_plainly(child: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            child.wait()
            return
        except KeyboardInterrupt:
            continue  # the terminal's, which the child has got too


def _as_started_by_a_shell() -> None:
    """Between fork and exec: no signal is held back, and the child ends with this process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()


def _end_descendants() -> None:
    """End what a script that a signal ended has left running."""
    if os.path.isdir("/proc/self/task"):
        end_all(lambda: list(list_descendants(os.getpid())), _reap, _GRACE_S)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
