"""Capture in a child process and wait for its run folder, or in the user's own process.

A child is necessary for three reasons: the allocator that writes memory events is chosen before
TensorFlow is imported, a trace from the start of a process sees every allocation, and a step that
crashes its process must not crash the command. Importing this module needs no TensorFlow.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.child_environment import (
    SIMULATED_CARD_FOLDER,
    can_have_short_pool,
    check_packages,
    hides_own_gpus,
    make_environment,
)
from analyzer.capture.process.child_process import (
    Child,
    Fork,
    ForkServers,
    count_memory_kills,
    explain_end,
    make_start_command,
    read_tail,
)
from analyzer.capture.process.run_folders import (
    LOG_FILE,
    check_writable,
    convert_os_errors,
    make_default_path,
    make_staging_folder,
    publish,
    remove_run,
)
from analyzer.model.contract.child_messages import (
    SIZES_PIPE,
    CaptureDone,
    CaptureKind,
    CaptureOptions,
    CaptureRequest,
    ChildFailed,
    Message,
    SizeRun,
    StageBegun,
    TargetKind,
    TargetSpec,
    write_message,
)
from analyzer.model.contract.run_note import TargetNote, read_run_file
from analyzer.model.errors import (
    AnalyzerError,
    FailureKind,
    StepOutOfMemory,
    TargetError,
)
from analyzer.model.progress import report_stage
from analyzer.tracing.parse.run_folder import RUN_FILE

if TYPE_CHECKING:
    from analyzer.capture.run.step_capture import Captured
    from analyzer.capture.targets.step_program import Program


_INTERRUPTED = "Interrupted; no run was written."
_PARTING_S = 10.0  # for the user's exit handlers after the last message

# Takes the answer for a size and returns the next size, or None.
NextSize = Callable[[SizeRun], int | None]


def capture(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool,
    kind: CaptureKind = "run",
    copies: ForkServers | None = None,
    limit_s: float = math.inf,
    next_size: NextSize | None = None,
) -> Path:
    """Capture the target's step in a child process and return the run folder.

    On a large simulated card the step runs with a short pool first; of several sizes, the one that does
    not fit it raises StepOutOfMemory, and the next capture has the whole pool.

    The folder appears whole or not at all. Of a step that fails while it runs, ``run.json`` holds the
    error; TargetError says that it cannot be built or ended its process, StepOutOfMemory that memory ran
    out. ``copies`` are fork servers to use; after ``limit_s`` the child is ended (``TIMED_OUT``).

    ``next_size`` continues a capture of several sizes; then ``limit_s`` is for each of them.
    """
    check_writable(out, force=force)

    def capture_once(options: CaptureOptions) -> Path:
        with make_staging_folder(out) as staging:
            with convert_os_errors(out):
                request = CaptureRequest(
                    target=spec,
                    options=options,
                    folder=str(staging),
                    kind=kind,
                )

                child = _start(request, copies)

                with _send_sizes(staging / SIZES_PIPE, next_size) as answer:
                    _wait(child, request, answer, limit_s)

            shutil.rmtree(staging / SIMULATED_CARD_FOLDER, ignore_errors=True)

            if not (staging / RUN_FILE).is_file():
                raise TargetError(
                    f"The capture is gone: {spec.text} or another program removed it.",
                    "Name another --out.",
                )

            return publish(staging, out, force=force)

    needs_whole_pool = copies is not None and copies.needs_whole_pool
    if needs_whole_pool or not can_have_short_pool(options, kind):
        return capture_once(options)

    return _try_short_pool(capture_once, options, copies, has_sizes=bool(next_size))


def _try_short_pool(
    capture_once: Callable[[CaptureOptions], Path],
    options: CaptureOptions,
    copies: ForkServers | None,
    *,
    has_sizes: bool,
) -> Path:
    """Capture with a short pool, and again with the whole one if the step does not fit."""
    try:
        folder = capture_once(replace(options, has_short_pool=True))
        failure = read_run_file(folder / RUN_FILE).error

        if failure is None or failure.kind is not FailureKind.OUT_OF_MEMORY:
            return folder

        remove_run(folder)
    except StepOutOfMemory:
        if copies is not None and has_sizes:
            copies.needs_whole_pool = True
            raise  # the size is the last one, not that of the options

    if copies is not None:
        copies.needs_whole_pool = True

    return capture_once(options)


def _start(request: CaptureRequest, copies: ForkServers | None) -> Child | Fork:
    """Start the child that serves a request, or a fork of a server."""
    staging = Path(request.folder)
    file = staging / "request.json"
    log = staging / LOG_FILE
    write_message(file, request)

    # One folder of tools for all forks, whose environments would differ otherwise.
    folder = copies.folder if copies else staging

    options = request.options
    environment = make_environment(request.target, options, request.kind, folder)

    if copies and hides_own_gpus(options):
        server = copies.start(log, environment)
        if server is not None:
            return Fork(server, file)

    return Child(
        make_start_command("process.capture_worker", str(file)), log, environment
    )


@contextmanager
def _send_sizes(
    pipe: Path, next_size: NextSize | None
) -> Iterator[Callable[[SizeRun], None]]:
    """Make the pipe over which a child gets further sizes; a closed pipe ends them."""
    if next_size is None:
        yield lambda answer: None
        return

    os.mkfifo(pipe)
    descriptor: int | None = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)

    def send(answer: SizeRun) -> None:
        nonlocal descriptor
        size = next_size(answer)

        if descriptor is None:
            return

        if size is not None and answer.is_open:
            os.write(descriptor, f"{size}\n".encode())
        else:
            os.close(descriptor)
            descriptor = None

    try:
        yield send
    finally:
        if descriptor is not None:
            os.close(descriptor)

        pipe.unlink(missing_ok=True)


def _wait(
    child: Child | Fork,
    request: CaptureRequest,
    answer: Callable[[SizeRun], None],
    limit_s: float,
) -> None:
    """Wait for a child's end, or raise the error that it reports or that explains its end."""
    kills_before = count_memory_kills()
    last: Message | None = None
    stage = "starting"
    child.limit_time(limit_s)

    try:
        for last in child.messages():
            if isinstance(last, StageBegun):
                stage = last.stage
                report_stage(stage)
            elif isinstance(last, SizeRun):
                child.limit_time(limit_s)
                answer(last)
            else:  # the last message; a thread of the user's may run forever
                child.limit_time(_PARTING_S)

        is_late = not child.has_ended
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_INTERRUPTED) from None
    finally:
        child.close()

    if isinstance(last, CaptureDone):
        Path(request.folder, "request.json").unlink(missing_ok=True)
        return

    log = Path(request.folder, LOG_FILE)
    if isinstance(last, ChildFailed):
        raise _make_error(last, log)

    target = request.target.text
    if is_late:
        raise TargetError(
            f"The process of {target} did not end in {limit_s:.0f} s while {stage}.",
            kind=FailureKind.TIMED_OUT,
        )

    kills = count_memory_kills() - kills_before
    text = read_tail(log)
    raise explain_end(child.code, stage, target, text, _save_log(log), kills=kills)


def _make_error(failed: ChildFailed, log: Path) -> AnalyzerError:
    for error in (TargetError, StepOutOfMemory):
        if failed.exit_code == error.exit_code:
            return error(failed.error, hint=failed.hint, kind=failed.kind)

    hint = f"{failed.hint} {_save_log(log)}".strip()
    return AnalyzerError(failed.error, hint, kind=failed.kind)


def _save_log(log: Path) -> str:
    """Copy the end of a log to the temporary folder; return a sentence that names the copy."""
    content = read_tail(log)
    if not content:
        return ""

    with suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="analyze-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8") as copy:
            copy.write(content)

        return f"Its full output: {name}"

    return ""


def capture_live(
    target: Any,
    options: CaptureOptions,
    out: Path | None,
    *,
    force: bool,
) -> Path:
    """Run ``target``'s step and return the run folder.

    It runs in this process if the allocator already writes memory events (a GPU, or
    ``TF_CPU_ALLOCATOR_USE_BFC=1`` from the start): then the user's own weights and inputs are measured.
    Otherwise a Keras model is saved and captured in a child process; other steps raise TargetError.
    """
    if not options.gpu and can_trace_here():
        from analyzer.capture.run.profiled_run import profiling, run_steps

        def run(make: Callable[[], Program], folder: Path) -> Captured:
            steps = options.step_count
            with profiling(folder):
                return run_steps(make, steps, own_process=False)

        return _capture_here(target, options, out, run, force=force)

    _, out = _check_target(target, out, force=force)
    if is_model(target):
        jit = options.jit
        if jit is None and not options.gpu and getattr(target, "compiled", False):
            # on a card, the child's Keras chooses for the card
            jit = bool(target.jit_compile)

        options = replace(options, jit=jit)
        with save_model(target) as spec:
            return capture(spec, options, out, force=force)

    if options.gpu:
        raise TargetError(
            "A simulated card needs a process of its own, and a function cannot be passed to one.",
            "Name the step instead: analyzer.trace('file.py:make_step', gpu=...).",
        )

    raise make_allocator_error(
        "name the step instead: analyzer.trace('file.py:make_step')"
    )


def capture_unrun(
    target: Any,
    options: CaptureOptions,
    out: Path | None,
    *,
    force: bool,
) -> Path:
    """Capture the graph of a live step in this process, without running it; return the run folder."""
    check_packages()
    from analyzer.capture.graph.estimate_capture import capture_graph

    return _capture_here(
        target,
        options,
        out,
        lambda make, folder: capture_graph(make, options),
        force=force,
    )


def _capture_here(
    target: Any,
    options: CaptureOptions,
    out: Path | None,
    run: Callable[[Callable[[], Program], Path], Captured],
    *,
    force: bool,
) -> Path:
    """Capture a live step in this process by ``run``; return the run folder."""
    from analyzer.capture.process.capture_worker import write_run
    from analyzer.capture.targets.resolve_target import make_program

    spec, out = _check_target(target, out, force=force)
    with make_staging_folder(out) as staging:
        captured = run(partial(make_program, target, spec.text, options), staging)
        captured.run = replace(
            captured.run,
            target=TargetNote(text=spec.text, kind="live", name=spec.name),
            from_process_start=False,
            caution=options.caution,
        )
        write_run(staging, captured)

        return publish(staging, out, force=force)


def can_trace_here() -> bool:
    """Return whether TensorFlow's allocator writes memory events in this process.

    If TensorFlow is not imported yet, the allocator is chosen now. InputError if it cannot be used.
    """
    check_packages()
    is_chosen = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")

    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
        return True

    import tensorflow as tf

    return is_chosen or bool(tf.config.list_physical_devices("GPU"))


def make_allocator_error(instead: str) -> TargetError:
    """Return the error for a process that cannot trace; ``instead`` is another way to trace."""
    return TargetError(
        "TensorFlow runs in this process on an allocator that writes no memory events.",
        f"Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported, or {instead}.",
    )


def _check_target(
    target: Any,
    out: Path | None,
    *,
    force: bool,
) -> tuple[TargetSpec, Path]:
    """Return a live target's spec and its folder, which is absolute: the step may change folders."""
    name = name_live(target)
    spec = TargetSpec(text=name, kind=TargetKind.MODULE, path="", attribute=name)
    out = (out or make_default_path(spec)).absolute()
    check_writable(out, force=force)

    return spec, out


def name_live(target: Any) -> str:
    """Return the name of a live model or function."""
    return str(getattr(target, "name", getattr(target, "__name__", "")) or "step")


def is_model(target: Any) -> bool:
    """Return whether a live target is a Keras model."""
    return hasattr(target, "get_config") and hasattr(target, "layers")


@contextmanager
def save_model(model: Any) -> Iterator[TargetSpec]:
    """Save a model into a temporary folder, as a target for other processes."""
    with tempfile.TemporaryDirectory(prefix="tf-memory-analyzer-") as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
        except Exception as error:
            raise TargetError(
                f"The model {model.name!r} cannot be saved to be captured: {error}",
                "Name its code instead: analyzer.trace('file.py:build').",
            ) from error

        yield TargetSpec(
            text=name_live(model),
            kind=TargetKind.KERAS_FILE,
            path=str(path),
        )
