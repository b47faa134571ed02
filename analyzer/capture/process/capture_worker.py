"""The child process that imports TensorFlow and leaves a run folder.

It runs the step under the profiler, or takes the graph that would run and runs nothing.

It speaks to its parent in ``messages``, on the standard output that it was started
with; whatever the user's code prints goes to the log. ``launch`` starts it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import functools
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from analyzer.capture.process import phantom_launch as phantom
from analyzer.capture.process.launch import STOPPING, hides_own_gpus
from analyzer.capture.run.source_frames import clean_message, describe_user_error, find_culprit
from analyzer.capture.xla.xla_dumps import add_dump_flags
from analyzer.model.contract import run_note as contract
from analyzer.model.contract.capture_request import (
    REQUEST_VERSION,
    CaptureOptions,
    CaptureRequest,
    TargetSpec,
)
from analyzer.model.contract.child_messages import (
    CaptureDone,
    ChildFailed,
    Message,
    StageBegun,
    encode_message,
    read_message,
)
from analyzer.model.contract.graph_note import GraphFile, encode_graph
from analyzer.model.contract.reading import pack
from analyzer.model.contract.run_note import TargetNote, encode_run
from analyzer.model.errors import (
    AnalyzerError,
    ExitCode,
    FailureKind,
    InputError,
    StepOutOfMemory,
    TargetError,
)
from analyzer.model.gc_pause import freeze_loaded_objects, pause_collector
from analyzer.tracing.parse.logdir import RUN_FILE

if TYPE_CHECKING:
    from analyzer.capture.run.profiled_run import Captured
    from analyzer.capture.xla.xla_lowering import LoweredFunction

    Capture = Callable[[TargetSpec, CaptureOptions, Path, Any], Captured]

GRAPH_FILE = "graph.json.gz"
DUMP = ".xla"
"""Folder in the run folder that XLA leaves compiled modules in while the child runs."""

GENERATED = ".autograph"
"""Folder in the run folder for the code that TensorFlow makes of the user's."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_ROOM_WORDS = ("No space left on device", "Disk quota exceeded", "File too large")


class Channel:
    """Messages to the parent, over the standard output that this process was started with.

    Attributes:
        stage: What was told last.
    """

    def __init__(self) -> None:
        self.stage = "starting"
        self._owner = os.getpid()
        self._descriptor = os.dup(1)
        sys.stdout.flush()
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def of_this_process(self) -> Channel:
        """Return it for a process that was forked to send messages too."""
        self._owner = os.getpid()
        return self

    def send(self, message: Message) -> None:
        """Send one message; unbuffered, because a signal's handler sends too."""
        if os.getpid() != self._owner:
            os._exit(0)  # a copy that the user's code forked and let run on into ours
        line = encode_message(message)
        while line:
            line = line[os.write(self._descriptor, line) :]

    def report(self, stage: str, share: float) -> None:
        """Tell what is being done, and the share done."""
        self.stage = stage
        self.send(StageBegun(stage, share))

    def fail(self, error: AnalyzerError) -> int:
        """Tell what went wrong; return the exit code."""
        code = int(error.exit_code)
        self.send(ChildFailed(error.message, error.hint, code, find_kind(error)))
        return code

    def interrupt_once(self, number: int, frame: FrameType | None) -> None:
        """Stop the step at the first Ctrl-C and say so; another one is too late."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.send(StageBegun(STOPPING, 0.0))
        raise KeyboardInterrupt


def main(request_path: str, places: list[str], channel: Channel | None = None) -> int:
    """Do what the request says; return the exit code.

    Args:
        request_path: The request, a JSON file.
        places: ``sys.path`` for the user's code.
        channel: Messages to the parent; None to begin with them.
    """
    faulthandler.enable()
    channel = channel or Channel()
    # A shell starts background jobs with Ctrl-C ignored; the trace is to be written all the same.
    signal.signal(signal.SIGINT, channel.interrupt_once)
    target = "the target"
    try:
        request = read_message(Path(request_path), CaptureRequest, REQUEST_VERSION)
        target = request.target.text
        _serve(request, places, channel.report)
    except AnalyzerError as error:
        return channel.fail(error)
    except KeyboardInterrupt:
        channel.send(ChildFailed("Interrupted.", "", int(ExitCode.INTERRUPTED)))
        return int(ExitCode.INTERRUPTED)
    except BaseException as error:  # sys.exit() in the user's code too
        traceback.print_exc()
        return channel.fail(told(error, target, channel.stage))
    channel.send(CaptureDone())
    main_thread = threading.main_thread()
    if all(thread.daemon or thread is main_thread for thread in threading.enumerate()):
        _end()
    return int(ExitCode.OK)


def find_kind(error: AnalyzerError) -> FailureKind:
    """Return why an error was raised: its own kind, else that of TensorFlow's error behind it."""
    if error.kind is FailureKind.OTHER and "tensorflow" in sys.modules:
        from analyzer.capture.run.profiled_run import classify_failure

        return classify_failure(error.__cause__)
    return error.kind


def told(error: BaseException, target: str, stage: str) -> AnalyzerError:
    """Return what nobody expected as what it is: the user's, the machine's or a fault of ours.

    Args:
        error: What was raised.
        target: What the user named.
        stage: What was being done.
    """
    what = clean_message(f"{type(error).__name__}: {error}".rstrip(": "))
    if _is_out_of_room(error):
        return InputError(
            f"The disk is full: {target} was stopped while {stage} ({what}).",
            hint="Make room, or name another --out.",
        )
    if isinstance(error, MemoryError):
        return StepOutOfMemory(f"There is not enough host memory for {target} while {stage}.")
    if isinstance(error, SystemExit):
        return TargetError(
            f"{target} called sys.exit({error.code}) while {stage}.", kind=FailureKind.EXITED
        )
    if find_culprit(error) == "user":
        return TargetError(f"{target} failed while {stage}: {describe_user_error(error)}")
    return AnalyzerError(f"The capture of {target} failed while {stage}: {what}")


def _is_out_of_room(error: BaseException) -> bool:
    """Say whether an error is a full disk, told by the system or by TensorFlow's own file code."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return any(words in str(error) for words in _NO_ROOM_WORDS)


def _end() -> NoReturn:
    """End the process as it is: taking a large graph apart object by object takes a second or more.

    What was registered for the end is done, and no thread of the user's is left to wait for.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(ExitCode.OK))


def import_all() -> None:
    """Import TensorFlow, Keras and all of ours that runs a step or takes its graph.

    Raises:
        InputError: they cannot be imported.
    """
    _import_tensorflow()
    _leaving_unrun()
    _running()


def _import_tensorflow() -> None:
    """Import TensorFlow and Keras.

    Raises:
        InputError: they cannot be imported.
    """
    try:
        import keras
        import tensorflow  # noqa: F401
    except Exception as error:
        traceback.print_exc()
        first = next(iter(str(error).splitlines()), "")
        raise InputError(
            f"TensorFlow cannot be imported: {type(error).__name__}: {first}",
            hint="Check it with: python -c 'import tensorflow'.",
        ) from None
    # Keras cuts the user's own lines out of an error too.
    keras.config.disable_traceback_filtering()


@contextlib.contextmanager
def _generated_code_in(folder: Path) -> Iterator[None]:
    """Let autograph write the code that it makes of the user's into ``folder``.

    It writes to the system's temporary folder, and removes that at the end of the process: not where
    the process is killed.
    """
    from analyzer.capture.private_names import import_autograph_loader

    loader = import_autograph_loader()
    folder.mkdir()
    if hasattr(loader, "tempfile"):
        make = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
        loader.tempfile = types.SimpleNamespace(NamedTemporaryFile=make)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_started_by_the_user(spec: TargetSpec, places: list[str]) -> None:
    """Let modules and arguments be found as in a Python of the user's own.

    Called after all of ours and TensorFlow is imported: from here on the user's ``json.py`` is the
    user's business. What lies in the working folder is found last; a target's own folder comes first
    when the target is loaded.
    """
    ours = [place for place in sys.path if place not in places]
    sys.path[:] = [*places, *ours]
    with contextlib.suppress(OSError):  # the working folder may have been removed
        sys.path.append(os.getcwd())
    sys.argv[:] = [spec.path]


def _serve(request: CaptureRequest, places: list[str], report: Any) -> None:
    report("starting TensorFlow", 0.0)
    spec, options = request.target, request.options
    is_static, is_trial = request.kind == "static", request.kind == "trial"
    on_phantom = bool(options.gpu) and not is_static
    if options.device == "cpu" or (is_static and hides_own_gpus(options)):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    folder = Path(request.folder)
    if not is_trial:
        os.environ["XLA_FLAGS"] = add_dump_flags(folder / DUMP, os.environ.get("XLA_FLAGS", ""))
    with pause_collector():
        _import_tensorflow()
    freeze_loaded_objects()
    import tensorflow as tf

    if options.device == "gpu" and not options.gpu and not tf.config.list_physical_devices("GPU"):
        raise InputError("TensorFlow sees no GPU here.", hint="Leave out --device gpu.")
    if options.inter_op_threads:
        tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
    if on_phantom:
        phantom.set_up(options, tf)
    do = _leaving_unrun() if is_static else _trying() if is_trial else _running()
    _as_started_by_the_user(spec, places)
    with _generated_code_in(folder / GENERATED):
        captured = do(spec, options, folder, report)
    target = TargetNote(text=spec.text, kind=spec.kind.value, name=spec.name)
    captured.run = replace(
        captured.run,
        target=target,
        from_process_start=True,
        phantom=phantom.phantom_note(options) if on_phantom else None,
    )
    report("writing the graph", 0.97)
    with pause_collector():
        write_run(folder, captured)
    shutil.rmtree(folder / DUMP, ignore_errors=True)


def _running() -> Capture:
    """Return what runs the step; all that it needs is imported now."""
    from analyzer.capture.run.profiled_run import profiling, run_steps
    from analyzer.capture.targets.resolve_target import resolve

    def run(spec: TargetSpec, options: CaptureOptions, folder: Path, report: Any) -> Captured:
        with profiling(folder):
            return run_steps(
                lambda: resolve(spec, options), options.step_count, report, dump=folder / DUMP
            )

    return run


def _trying() -> Capture:
    """Return what runs the step without a trace; all that it needs is imported now."""
    from analyzer.capture.run.profiled_run import run_steps
    from analyzer.capture.targets.resolve_target import resolve

    def attempt(spec: TargetSpec, options: CaptureOptions, folder: Path, report: Any) -> Captured:
        return run_steps(lambda: resolve(spec, options), options.step_count, report, is_trial=True)

    return attempt


def _leaving_unrun() -> Capture:
    """Return what takes the step's graph; all that it needs is imported now."""
    from analyzer.capture.graph.estimate_capture import capture_unrun_step
    from analyzer.capture.targets.resolve_target import resolve

    def take(spec: TargetSpec, options: CaptureOptions, folder: Path, report: Any) -> Captured:
        return capture_unrun_step(lambda: resolve(spec, options), report, options, folder / DUMP)

    return take


def write_run(folder: Path, captured: Captured) -> None:
    """Write the note and the graph into the run folder."""
    run = replace(
        captured.run,
        graph=GRAPH_FILE if captured.ops else None,
        xla=_write_compiled(folder, captured.compiled),
    )
    if captured.ops:
        graph = GraphFile(
            ops=tuple(captured.ops),
            inside=tuple(captured.inside),
            compiling=tuple(one.requests for one in captured.compiled),
            traced=tuple(captured.traced),
        )
        (folder / GRAPH_FILE).write_bytes(pack(encode_graph(graph)))
    (folder / RUN_FILE).write_bytes(encode_run(run))


def _write_compiled(
    folder: Path, compiled: list[LoweredFunction]
) -> tuple[contract.CompiledFunction, ...]:
    """Write each compiled function's module and plan; return what the note says of them."""
    rows = []
    for number, one in enumerate(compiled):
        suffix = f"-{number}" if number else ""
        files: dict[str, str | None] = {"module": None, "plan": None}
        for key, content in (("module", one.module), ("plan", one.plan)):
            if content:
                files[key] = f"{key}{suffix}.hlo.pb.gz"
                (folder / f"{key}{suffix}.hlo.pb.gz").write_bytes(pack(content))
        rows.append(
            contract.CompiledFunction(
                ops=one.ops,
                function=one.function,
                platform=one.platform,
                fixed=one.fixed,
                compilations=one.compilations,
                module=files["module"],
                plan=files["plan"],
            )
        )
    return tuple(rows)
