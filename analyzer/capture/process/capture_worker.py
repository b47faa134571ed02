"""The child process that imports TensorFlow, runs or traces the step, and writes the run folder.

It sends messages to its parent on its original standard output; the user's output goes to the log.

A fork server imports TensorFlow once, and serves each capture in a fork of itself. A fork is safe at
that point: TensorFlow has not computed anything, and its only threads are of NumPy's OpenBLAS and
jemalloc, which release their locks at a fork. Requests are paths, one a line.
"""

from __future__ import annotations

import atexit
import errno
import faulthandler
import os
import queue
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.capture.process import child_environment
from analyzer.capture.process.child_process import end_with_parent
from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.capture.run.source_frames import (
    clean_message,
    describe_user_error,
    find_culprit,
)
from analyzer.model.contract.child_messages import (
    SIZES_PIPE,
    CaptureDone,
    CaptureRequest,
    ChildFailed,
    CopyEnd,
    Message,
    StageBegun,
    encode_message,
    read_message,
)
from analyzer.model.contract.reading import pack
from analyzer.model.contract.run_note import (
    GraphFile,
    TargetNote,
    encode_graph,
    encode_run,
)
from analyzer.model.errors import (
    AnalyzerError,
    ExitCode,
    FailureKind,
    InputError,
    StepOutOfMemory,
    TargetError,
    describe_import_error,
)
from analyzer.model.interrupts import (
    die_with_parent,
    freeze_loaded_objects,
    pause_collector,
)
from analyzer.model.progress import listening, report_stage
from analyzer.tracing.parse.run_folder import GRAPH_FILE, RUN_FILE
from analyzer.tracing.xla.xla_dumps import add_dump_flags

if TYPE_CHECKING:
    from analyzer.capture.run.step_capture import Captured

DUMP = ".xla"  # subfolder of the run folder for XLA's compiled modules while the child runs
TEMPORARY = ".tmp"  # subfolder for temporary files of the child
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Channel:
    """Messages to the parent over the process' original standard output."""

    def __init__(self) -> None:
        self.stage = "starting"
        self.owner = os.getpid()
        self._descriptor = os.dup(1)
        sys.stdout.flush()
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def send(self, message: Message) -> None:
        """Send one message; unbuffered, because a signal handler also sends."""
        if os.getpid() != self.owner:
            os._exit(0)  # a fork by the user's code that ran on into ours

        line = encode_message(message)
        while line:
            line = line[os.write(self._descriptor, line) :]

    def report(self, stage: str, share: float | None = None) -> None:
        """Report the current stage; nobody shows shares of it."""
        self.stage = stage
        self.send(StageBegun(stage))

    def fail(self, error: AnalyzerError) -> int:
        """Report an error, with the kind of TensorFlow's error behind it; return the exit code."""
        kind = error.kind
        if kind is FailureKind.OTHER and "tensorflow" in sys.modules:
            from analyzer.capture.run.step_capture import classify_failure

            kind = classify_failure(error.__cause__)

        self.send(ChildFailed(error.message, error.hint, int(error.exit_code), kind))

        return int(error.exit_code)


def main(place: str, places: list[str], modules: frozenset[str]) -> int:
    """Serve a request file, or be the fork server of a folder; return the exit code."""
    if Path(place).is_dir():
        return _serve_forks(place, places)

    end_with_parent(Path(place).parent)
    return _serve(place, places, Channel())


def _serve(request_path: str, places: list[str], channel: Channel) -> int:
    """Serve a request file, with ``places`` as ``sys.path`` for the user's code."""
    channel.owner = os.getpid()
    faulthandler.enable()
    target = "the target"

    try:
        request = read_message(Path(request_path), CaptureRequest)
        target = request.target.text
        with listening(channel.report):
            _capture(request, places, channel)
    except AnalyzerError as error:
        return channel.fail(error)
    except BaseException as error:  # also sys.exit() in the user's code
        traceback.print_exc()
        return channel.fail(convert_error(error, target, channel.stage))

    channel.send(CaptureDone())

    if all(
        one.daemon or one is threading.main_thread() for one in threading.enumerate()
    ):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(ExitCode.OK))  # freeing the objects of a large graph takes seconds

    return int(ExitCode.OK)


def convert_error(error: BaseException, target: str, stage: str) -> AnalyzerError:
    """Return the typed error for an unexpected one: the user's, the machine's or a bug of ours."""
    text = clean_message(f"{type(error).__name__}: {error}".rstrip(": "))

    # TensorFlow gives no number
    if any(os.strerror(full) in str(error) for full in _DISK_FULL):
        return InputError(
            f"The disk is full: {target} was stopped while {stage} ({text}).",
            "Free some space, or name another --out.",
        )

    if isinstance(error, MemoryError):
        return StepOutOfMemory(
            f"There is not enough host memory for {target} while {stage}."
        )

    if isinstance(error, SystemExit):
        return TargetError(
            f"{target} called sys.exit({error.code}) while {stage}.",
            kind=FailureKind.EXITED,
        )

    if find_culprit(error) == "user":
        return TargetError(
            f"{target} failed while {stage}: {describe_user_error(error)}"
        )

    return AnalyzerError(f"The capture of {target} failed while {stage}: {text}")


def import_all() -> None:
    """Import TensorFlow, Keras and every module that a capture needs; InputError if that fails."""
    try:
        import keras
        import tensorflow
    except Exception as error:
        traceback.print_exc()
        raise InputError(
            f"TensorFlow and Keras cannot be imported: {describe_import_error(error)}.",
            "Check them with: python -c 'import keras, tensorflow'.",
        ) from None

    try:
        import analyzer.capture.private_names
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"TensorFlow {tensorflow.__version__} with Keras {keras.__version__} is not supported: "
            f"{error}.",
            "The newest supported releases are in docs/start.md.",
        ) from None

    # Keras' filter would remove the user's own lines from tracebacks.
    keras.config.disable_traceback_filtering()
    import analyzer.capture.graph.estimate_capture
    import analyzer.capture.run.profiled_run  # noqa: F401


def _capture(request: CaptureRequest, places: list[str], channel: Channel) -> None:
    """Capture the step of a request, and write its run folder."""
    report_stage("starting TensorFlow")
    spec = request.target
    options = request.options
    folder = Path(request.folder)

    # Autograph leaves its code there.
    tempfile.tempdir = str(folder / TEMPORARY)
    (folder / TEMPORARY).mkdir()

    is_static = request.kind == "static"
    on_card = bool(options.gpu) and not is_static

    if options.device == "cpu" or (is_static and options.gpu):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    if request.kind == "run":
        os.environ["XLA_FLAGS"] = add_dump_flags(
            folder / DUMP, os.environ.get("XLA_FLAGS", "")
        )

    with pause_collector():
        import_all()

    freeze_loaded_objects()
    _configure(request, on_card=on_card)

    # After all imports of ours, which a json.py of the user's must not shadow: sys.path as in the user's
    # own Python, with the working folder last. Loading the target puts its own folder first.
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]

    with suppress(OSError):  # the working folder may have been removed
        sys.path.append(os.getcwd())

    sys.argv[:] = [spec.path]

    captured = _capture_step(request, folder, channel)
    captured.run = replace(
        captured.run,
        target=TargetNote(text=spec.text, kind=spec.kind.value, name=spec.name),
        from_process_start=True,
        caution=options.caution,
        simulated_card=child_environment.make_card_note(options) if on_card else None,
    )

    report_stage("writing the graph")

    with pause_collector():
        write_run(folder, captured)

    for name in (DUMP, TEMPORARY):
        shutil.rmtree(folder / name, ignore_errors=True)


def _configure(request: CaptureRequest, *, on_card: bool) -> None:
    """Set TensorFlow's devices and threads before it uses them."""
    import tensorflow as tf

    options = request.options
    if (
        options.device == "gpu"
        and not options.gpu
        and not tf.config.list_physical_devices("GPU")
    ):
        raise InputError("TensorFlow sees no GPU here.", "Leave out --device gpu.")

    if options.inter_op_threads:
        tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)

    if on_card:
        child_environment.configure_cards(options, tf)


def _capture_step(request: CaptureRequest, folder: Path, channel: Channel) -> Captured:
    from analyzer.capture.graph.estimate_capture import capture_unrun_step
    from analyzer.capture.run.profiled_run import answer_sizes, profiling, run_steps
    from analyzer.capture.targets.resolve_target import resolve

    options = request.options
    make = partial(resolve, request.target, options)
    steps = options.step_count

    if request.kind == "static":
        return capture_unrun_step(make, options)

    if request.kind == "sizes":
        answer = partial(answer_sizes, channel.send, folder / SIZES_PIPE)
        return run_steps(make, steps, then=answer)

    with profiling(folder) as end_trace:
        return run_steps(make, steps, end_trace=end_trace, dump=folder / DUMP)


# Cautions about an allocator that writes no memory events (``gpu_cudamallocasync_allocator.cc``).
_NO_EVENTS = (
    "TF_GPU_ALLOCATOR={} records no allocations: unset it, and trace again to see the "
    "card's tensors."
)
_DEFAULT_ALLOCATOR = (
    "Simulated with TensorFlow's default allocator, because TF_GPU_ALLOCATOR={} records "
    "no allocations."
)


def write_run(folder: Path, captured: Captured) -> None:
    """Write the note, the graph and compiled functions into the run folder."""
    notes = []
    for number, (note, module) in enumerate(captured.compiled):
        plan = f"plan-{number}.hlo.pb.gz"
        (folder / plan).write_bytes(pack(module))
        notes.append(replace(note, plan=plan))

    graph = None
    if captured.ops:
        graph = GRAPH_FILE
        content = GraphFile(
            ops=tuple(captured.ops),
            inside=tuple(captured.inside),
        )

        (folder / graph).write_bytes(pack(encode_graph(content)))

    from analyzer.capture.run.allocator_figures import DRIVER_POOLS

    run = replace(captured.run, graph=graph, xla=tuple(notes))
    name = os.environ.get("TF_GPU_ALLOCATOR", "")

    if name in DRIVER_POOLS and run.device.kind == "gpu":
        caution = _NO_EVENTS if run.simulated_card is None else _DEFAULT_ALLOCATOR
        run = replace(run, caution=f"{run.caution} {caution.format(name)}".strip())

    (folder / RUN_FILE).write_bytes(encode_run(run))


def _serve_forks(folder: str, places: list[str]) -> int:
    """Import TensorFlow, then serve requests until the parent ends; return the exit code."""
    faulthandler.enable()

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    end_with_parent(Path(folder), requests.put)
    channel = Channel()
    channel.report("starting TensorFlow")

    try:
        with pause_collector():
            import_all()
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

    return _serve(str(request), places, channel)
