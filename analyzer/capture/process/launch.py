"""Start the child process that captures, and wait for its run folder. Needs no TensorFlow.

A child, because the allocator that writes memory events has to be chosen before TensorFlow is
imported, because a trace from the start of a process sees every buffer being born, and because a
step that takes the process down must not take the command down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from analyzer.capture.process import phantom_launch as phantom
from analyzer.capture.process.child_ending import (
    SilentEnd,
    explain_end,
    read_host_memory,
    read_tail,
)
from analyzer.capture.process.child_process import Child, ForkedCapture, ForkServers
from analyzer.capture.process.declared_environment import declared_environment
from analyzer.capture.process.run_folders import (
    LOG_FILE,
    check_writable,
    convert_os_errors,
    make_staging_folder,
    publish,
)
from analyzer.model.contract.capture_request import (
    CaptureKind,
    CaptureOptions,
    CaptureRequest,
    TargetSpec,
)
from analyzer.model.contract.child_messages import (
    CaptureDone,
    ChildEnd,
    ChildFailed,
    Message,
    StageBegun,
    write_message,
)
from analyzer.model.errors import AnalyzerError, ExitCode, InputError, StepOutOfMemory, TargetError
from analyzer.model.user_cache import cache_folder
from analyzer.tracing.parse.logdir import RUN_FILE

STOPPING: Final = "stopping"
"""Stage that the child tells as its answer to Ctrl-C, before it writes what was traced."""

_CPU_LIMIT: Final = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
"""What TensorFlow reads the limit of a CPU's allocator from, in MiB."""

_NOTHING: Final = "Interrupted; nothing was written."
_ANSWER_S: Final = 3.0  # for the child to answer Ctrl-C: one stuck in TensorFlow never does
_WRITING_S: Final = 60.0  # for the child to write its trace after its answer
_PARTING_S: Final = 10.0  # for what the user's code does at the end of its process
_MOST_LOG_BYTES: Final = 16 << 20  # of the child's log, from its end, are kept

# Nothing may come from the working folder, where a json.py of the user's may lie, before all that is
# not the user's has been imported: `-c` and PYTHONPATH put it first.
_START: Final = """\
import os, sys
kept = [place for place in sys.path if place]
try:
    here = os.getcwd()
except OSError:
    here = ""
sys.path[:] = [place for place in kept if os.path.realpath(place) != here]
sys.path.append(sys.argv[1])
from analyzer.capture.process.{module} import main
sys.exit(main(sys.argv[2], kept))
"""

_ERRORS: Final[dict[int, type[AnalyzerError]]] = {
    ExitCode.BAD_INPUT: TargetError,
    ExitCode.STEP_OUT_OF_MEMORY: StepOutOfMemory,
}

Progress = Callable[[str, float], None]


def capture(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool,
    progress: Progress,
    kind: CaptureKind = "run",
    copies: ForkServers | None = None,
) -> Path:
    """Run the target's step in a child process and return the run folder.

    The folder appears whole or not at all. A step that fails still leaves one, with its error in
    ``run.json``.

    Args:
        spec: What to run.
        options: How.
        out: The folder to make; where another run comes to be there meanwhile, one with a number
            behind the name.
        force: Replace ``out`` where it holds an earlier run.
        progress: Called with the stage and the share done, 0 to 1.
        kind: What is done with the step (``CaptureKind``).
        copies: Processes that several captures are copies of; None for one of its own.

    Raises:
        InputError: ``out`` cannot be used, or the target cannot be made a step or ends its process.
        StepOutOfMemory: there was not enough host memory.
        AnalyzerError: the child failed otherwise.
    """
    check_writable(out, force=force)
    with make_staging_folder(out) as staging:
        request = staging / "request.json"
        asked = CaptureRequest(target=spec, options=options, folder=str(staging), kind=kind)
        environment = _environment(spec, options, kind, staging)
        with convert_os_errors(out):
            write_message(request, asked)
            child: Child | ForkedCapture | None = None
            if copies is not None and hides_own_gpus(options):
                command = _command("fork_server")
                child = copies.copy(command, request, _log_of(request), environment)
            if child is None:
                child = Child(child_command(request), _log_of(request), staging, environment)
            _run(request, child, spec, progress, keeps_a_part=kind == "run")
            request.unlink(missing_ok=True)
        shutil.rmtree(staging / phantom.FOLDER, ignore_errors=True)
        if not (staging / RUN_FILE).is_file():
            raise TargetError(
                f"What was captured is gone: {spec.text} or another program removed it.",
                hint="Name another --out.",
            )
        return publish(staging, out, force=force)


def start_fork_server(
    spec: TargetSpec, options: CaptureOptions, kind: CaptureKind, copies: ForkServers
) -> None:
    """Start the process that captures will be copies of: it imports TensorFlow while others are made.

    Args:
        spec: What will be captured.
        options: How, but for the size.
        kind: What will be done with the step.
        copies: The processes.

    Raises:
        InputError: there can be no such process.
    """
    if (
        hides_own_gpus(options) and cache_folder() is not None
    ):  # else a card's libraries lie by each run
        environment = _environment(spec, options, kind, copies.folder)
        copies.begin(_command("fork_server"), copies.folder / LOG_FILE, environment)


def _environment(
    spec: TargetSpec, options: CaptureOptions, kind: CaptureKind, place: Path
) -> dict[str, str]:
    """Return the environment variables of a child.

    Args:
        spec: What it captures.
        options: How.
        kind: What is done with the step.
        place: Where the libraries of a card that is not there lie, where the user keeps no cache.
    """
    on_card = kind != "static" and bool(options.gpu)
    environment = make_base_environment(
        log_level="0" if kind == "run" else "1", host_events=not on_card
    )
    environment |= declared_environment(spec, environment)
    if kind != "static" and not options.gpu and options.memory_limit_bytes is not None:
        environment[_CPU_LIMIT] = str(max(options.memory_limit_bytes >> 20, 1))
    if on_card:
        environment |= phantom.variables(options, place)
    elif hides_own_gpus(options):
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    return environment


def make_base_environment(*, log_level: str | None, host_events: bool = True) -> dict[str, str]:
    """Return the child's environment variables.

    Args:
        log_level: From which level TensorFlow writes its log where the user does not say: ``0`` where
            it goes to the run folder, so that an allocator that runs out of memory leaves its list of
            chunks there; None for TensorFlow's own default, a script's.
        host_events: Whether the CPU's memory is of interest, so that its allocator is to be the one that
            writes events; a card's always does, and the CPU's has ten events for each of a card's.

    Raises:
        InputError: Keras is set to run on something other than TensorFlow.
    """
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend != "tensorflow":
        raise InputError(
            f"The environment variable KERAS_BACKEND is {backend}, and the memory of TensorFlow's "
            "steps is what is analysed.",
            hint="Set KERAS_BACKEND=tensorflow.",
        )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    if host_events:
        environment.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    if log_level is not None:
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", log_level)
    return environment


def make_module_command(module: str) -> list[str]:
    """Return the command that runs a module of this package, a checkout's too."""
    root = str(Path(__file__).parents[3])
    start = f"import sys; sys.path.append(sys.argv[1]); from {module} import main; sys.exit(main())"
    return [sys.executable, "-c", start, root]


def child_command(request: Path) -> list[str]:
    """Return the command of the child; the package is found even where it runs from a checkout."""
    return [*_command("capture_worker"), str(request)]


def hides_own_gpus(options: CaptureOptions) -> bool:
    """Say whether the machine's own cards are left alone: there may be others, that are not here."""
    return options.device == "cpu" or bool(options.gpu)


def _command(module: str) -> list[str]:
    root = str(Path(__file__).parents[3])
    return [sys.executable, "-c", _START.replace("{module}", module), root]


def _log_of(request: Path) -> Path:
    return request.with_name(LOG_FILE)


def _run(
    request: Path,
    child: Child | ForkedCapture,
    spec: TargetSpec,
    progress: Progress,
    *,
    keeps_a_part: bool,
) -> None:
    """Run the child to its end; an interrupted one may still write what it has, if that is of use."""
    log = _log_of(request)
    before = read_host_memory()
    last: Message | None = None
    stage = "starting"
    try:
        for message in child.messages():
            last = message
            if isinstance(message, StageBegun):
                stage = message.stage
                progress(stage, message.share)
            else:  # its last word; a thread of the user's may go on for ever
                child.deadline_s = time.monotonic() + _PARTING_S
    except KeyboardInterrupt:
        if not keeps_a_part:
            raise KeyboardInterrupt(_NOTHING) from None
        last = _after_interrupt(child, progress)
    finally:
        child.close()
    if isinstance(last, CaptureDone):
        return
    if isinstance(last, ChildFailed):
        raise _told_by_child(last, log)
    raise explain_end(
        SilentEnd(
            target=spec.text,
            stage=stage,
            child=child.end or ChildEnd(None),
            before=before,
            after=read_host_memory(),
            log=read_tail(log),
            saved_log=_keep(log),
        )
    )


def _after_interrupt(child: Child | ForkedCapture, progress: Progress) -> Message:
    """Pass Ctrl-C on and return the child's last word, which says that it wrote what it had.

    Raises:
        KeyboardInterrupt: it wrote nothing; it was stuck, say, where no Ctrl-C is seen.
    """
    child.interrupt()
    child.deadline_s = time.monotonic() + _ANSWER_S
    last: Message | None = None
    for message in child.messages():
        last = message
        if isinstance(message, StageBegun) and message.stage == STOPPING:
            child.deadline_s = time.monotonic() + _WRITING_S
        elif isinstance(message, StageBegun):
            progress(message.stage, message.share)
    if not isinstance(last, CaptureDone):
        raise KeyboardInterrupt(_NOTHING)
    return last


def _told_by_child(last: ChildFailed, log: Path) -> AnalyzerError:
    """Return the error that the child itself told.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    if last.exit_code == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt(_NOTHING)
    kind = _ERRORS.get(last.exit_code, AnalyzerError)
    hint = last.hint
    if kind is AnalyzerError and (kept := _keep(log)) is not None:
        hint = f"{hint} Its full output: {kept}".strip()
    return kind(last.error, hint=hint, kind=last.kind)


def _keep(log: Path) -> Path | None:
    """Keep the end of a log where the user finds it; return where, None where there is no room."""
    with contextlib.suppress(OSError):
        size_bytes = log.stat().st_size
        if not size_bytes:
            return None
        handle, name = tempfile.mkstemp(prefix="analyze-", suffix=".log")
        try:
            with os.fdopen(handle, "wb") as kept, log.open("rb") as file:
                file.seek(max(size_bytes - _MOST_LOG_BYTES, 0))
                shutil.copyfileobj(file, kept)
        except OSError:
            Path(name).unlink()
            return None
        return Path(name)
    return None
