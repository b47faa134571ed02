"""Run a user's script in a child with this process' terminal, and wait for it. Needs no TensorFlow.

The child is in this process' group, so the terminal's Ctrl-C and Ctrl-Z reach it as they would reach
``python script.py``. Signals sent only to this process are passed on. If this process is killed, the
system kills the script. If a signal ends the script, its descendants are also ended.
"""

import math
import secrets
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from analyzer.capture.process.child_environment import (
    SIMULATED_CARD_FOLDER,
    make_base_environment,
    make_card_environment,
    read_declared_environment,
)
from analyzer.capture.process.child_process import MARK, end_marked, make_start_command
from analyzer.capture.process.run_folders import (
    check_writable,
    make_staging_folder,
    publish,
)
from analyzer.model.contract.child_messages import WatchRequest, write_message
from analyzer.model.contract.run_note import WatchNote
from analyzer.model.interrupts import (
    ENDING,
    EXIT_BASE,
    REPEAT_S,
    delay_signals,
    die_with_parent,
)
from analyzer.tracing.parse.run_folder import RUN_FILE
from analyzer.tracing.xla.xla_dumps import add_dump_flags

_FROM_KERNEL = 0x80  # SI_KERNEL: from the terminal, which also signals the child
_PATIENCE_S = 20  # for a child that begins its report after SIGTERM


@dataclass(frozen=True, kw_only=True)
class ScriptEnd:
    """How a script ended, with a shell's exit status."""

    status: int
    folder: Path | None = None  # the run folder
    note: WatchNote | None = None  # if no step was traced
    has_tensorflow: bool = False  # whether the script imported TensorFlow
    fault: str = ""  # traceback of an error of ours
    unread: str = ""  # why the trace cannot be opened


# Shows a script while it runs; takes its run folder and its output.
ScriptView = Callable[[Path, IO[bytes]], AbstractContextManager[None]]


def run_script(
    request: WatchRequest,
    out: Path,
    *,
    force: bool,
    view: ScriptView | None,
) -> ScriptEnd:
    """Run a script to its end, or raise an InputError if ``out`` or the card cannot be used."""
    check_writable(out, force=force)
    environment = make_base_environment(log_level=None)

    # refuses other backends
    read_declared_environment(Path(request.script), environment)
    options = request.options

    with make_staging_folder(out) as staging:
        if options.gpu:
            environment |= make_card_environment(options, staging)
        elif options.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = "-1"

        environment["XLA_FLAGS"] = add_dump_flags(
            staging / DUMP, environment.get("XLA_FLAGS", "")
        )
        file = staging / "request.json"
        write_message(file, replace(request, folder=str(staging)))
        command = make_start_command("watch.script_child", str(file))

        if view:
            (staging / LIVE_FILE).touch()

        status = _run_in_terminal(command, environment, staging, view)

        with delay_signals():
            for name in (file.name, REPORT_FILE, LIVE_FILE):
                (staging / name).unlink(missing_ok=True)

            for name in (DUMP, SIMULATED_CARD_FOLDER, POOL_FOLDER):
                shutil.rmtree(staging / name, ignore_errors=True)

            end = ScriptEnd(
                status=status,
                note=read_untraced(staging),
                has_tensorflow=_take_text(staging / BEGUN_FILE) is not None,
                fault=_take_text(staging / _FAULT_FILE) or "",
            )

            if (staging / RUN_FILE).is_file() and (staging / "plugins").is_dir():
                end = replace(end, folder=publish(staging, out, force=force), note=None)

            return end


def _take_text(path: Path) -> str | None:
    """Read and remove a file; return None if there is none."""
    with suppress(OSError):
        text = path.read_text("utf-8", "replace")
        path.unlink()

        return text

    return None


def _run_in_terminal(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    view: ScriptView | None,
) -> int:
    """Run a command with this process' terminal; return its status as in a shell.

    Signals sent only to this process are passed on, except on systems without ``sigtimedwait``.

    Raises:
        KeyboardInterrupt: Ctrl-C came a second time while the script's observations were written.
    """
    interrupted_s = -math.inf
    is_second = False
    mark = secrets.token_hex(8)

    watched = {*ENDING, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    stack = ExitStack()
    pipes: dict[str, Any] = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if view else {}
    )

    try:
        child = subprocess.Popen(
            command,
            env={**environment, MARK: mark},
            preexec_fn=_prepare_child,
            **pipes,
        )
        if view and child.stdout:
            stack.enter_context(view(folder, child.stdout))

        interrupted_s, is_second = _pass_signals(child, watched, folder / REPORT_FILE)
    finally:
        stack.close()
        # a repetition of the last Ctrl-C is not meant for this process either
        time.sleep(max(interrupted_s + REPEAT_S - time.monotonic(), 0))
        _restore_signals(watched, before)

    if child.returncode < 0:
        end_marked(mark, child.pid, reap=child.poll)

    if is_second:
        raise KeyboardInterrupt("Interrupted again: there is no report.")

    status = child.returncode

    return status if status >= 0 else EXIT_BASE - status


def _pass_signals(
    child: subprocess.Popen[bytes],
    watched: set[signal.Signals],
    report: Path,
) -> tuple[float, bool]:
    """Pass the watched signals on to a child until it ends; return how Ctrl-C came.

    Args:
        child: The process.
        watched: The signals.
        report: The file that exists once the script's observations are being written.

    Returns:
        The time of the last Ctrl-C that is no repetition, and whether it ended the writing.
    """
    interrupted_s = -math.inf
    killed_s = math.inf  # when a child dies that an op keeps from its handler
    is_second = False

    while child.poll() is None:
        if not hasattr(signal, "sigtimedwait"):  # macOS
            child.wait()
            break

        received = signal.sigtimedwait(watched, 0.5)
        now_s = time.monotonic()
        if now_s > killed_s and not report.exists():
            child.kill()
        if received is None or received.si_signo == signal.SIGCHLD:
            continue

        if received.si_signo == signal.SIGTERM:
            killed_s = now_s + _PATIENCE_S
        if received.si_signo == signal.SIGINT and now_s - interrupted_s >= REPEAT_S:
            is_second = math.isfinite(interrupted_s) and report.exists()
            interrupted_s = now_s

        if received.si_code != _FROM_KERNEL or is_second:
            child.send_signal(signal.SIGKILL if is_second else received.si_signo)

    return interrupted_s, is_second


def _restore_signals(watched: set[signal.Signals], before: set[Any]) -> None:
    """Drop the signals that were meant for the child, and set the mask from before."""
    while pending := signal.sigpending() & watched:
        signal.sigwait(pending)

    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_child() -> None:
    """Unblock signals between fork and exec, and let the system kill the child with this process."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    die_with_parent()


# the ``WatchNote`` of a program without a traced step
_UNTRACED_FILE = "watch.json"

# the traceback of an error of ours, which the script survives
_FAULT_FILE = "watch.error"
BEGUN_FILE = "watch.begun"  # exists once the script has imported TensorFlow

# exists once the script's observations are being written
REPORT_FILE = "watch.report"

# exists with a view; step, bytes in use, peak, resident bytes
LIVE_FILE = "watch.live"
DUMP = ".xla"  # folder of XLA's compiled modules while the script runs
POOL_FOLDER = ".pool"  # folder of TensorFlow's records of full memory pools

# Variable with the start of the files that a pool writes if it cannot serve a request, one for each
# failed request, with all chunks (``BFCAllocator::MaybeWriteMemoryMap``). This costs nothing before.
POOL_RECORDS = "TF_BFC_MEMORY_DUMP"


def write_fault(folder: Path) -> None:
    """Write the traceback of the current exception, an error of ours."""
    with suppress(OSError):
        (folder / _FAULT_FILE).write_text(traceback.format_exc(), "utf-8")


def write_untraced(folder: Path, note: WatchNote) -> None:
    """Write the note of a program without a traced step."""
    write_message(folder / _UNTRACED_FILE, note)


def read_untraced(folder: Path) -> WatchNote | None:
    """Read and remove the note of ``write_untraced``; None if there is none or it is damaged."""
    text = _take_text(folder / _UNTRACED_FILE) or ""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=WatchNote)

    return None
