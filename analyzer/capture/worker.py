"""The child process that imports TensorFlow, runs or only notes the step, and leaves a run folder.

It speaks to its parent in lines of JSON on the standard output that it was started with; whatever
the user's code prints goes to the log. Started as ``python -m analyzer.capture.worker REQUEST``.
"""

from __future__ import annotations

import atexit
import gzip
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from analyzer.capture.dumps import dumping_flags
from analyzer.capture.spec import CaptureOptions, TargetKind, TargetSpec
from analyzer.contract import run as contract
from analyzer.contract.graph import GraphFile, encode_graph
from analyzer.contract.run import TargetNote, encode_run
from analyzer.errors import AnalyzerError, ExitCode, InputError
from analyzer.parse.logdir import RUN_FILE

if TYPE_CHECKING:
    from analyzer.capture.runtime import Captured
    from analyzer.capture.xla import CompiledFunction

GRAPH_FILE = "graph.json.gz"
DUMP = ".xla"
"""Folder in the run folder that XLA leaves compiled modules in while the child runs."""


def main(request_path: str) -> int:
    """Do what the request says; return the exit code."""
    # A shell starts background jobs with Ctrl-C ignored; the trace is to be written all the same.
    signal.signal(signal.SIGINT, _interrupt_once)
    channel = _take_stdout()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))

    def report(stage: str, share: float) -> None:
        _send(channel, {"stage": stage, "share": share})

    try:
        result = _serve(request, report)
    except AnalyzerError as error:
        _send(
            channel,
            {"error": error.message, "hint": error.hint, "exit_code": int(error.exit_code)},
        )
        return int(error.exit_code)
    except KeyboardInterrupt:
        _send(
            channel, {"error": "Interrupted.", "hint": "", "exit_code": int(ExitCode.INTERRUPTED)}
        )
        return int(ExitCode.INTERRUPTED)
    _send(channel, {"done": result})
    main_thread = threading.main_thread()
    if all(thread.daemon or thread is main_thread for thread in threading.enumerate()):
        _end()
    return int(ExitCode.OK)


def _end() -> NoReturn:
    """End the process as it is: taking a large graph apart object by object takes a second or more.

    What was registered for the end is done, and no thread of the user's is left to wait for.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(ExitCode.OK))


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Stop the step at the first Ctrl-C; the parent passes on another, and that is too late."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _take_stdout() -> TextIO:
    """Return a channel to the parent, and let everything else that prints go to stderr."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


def _send(channel: TextIO, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _serve(request: dict[str, Any], report: Any) -> dict[str, Any]:
    report("starting TensorFlow", 0.0)
    options = CaptureOptions.from_json(request["options"])
    if options.device == "cpu" or options.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

    folder = Path(request["folder"])
    os.environ["XLA_FLAGS"] = dumping_flags(folder / DUMP, os.environ.get("XLA_FLAGS", ""))

    import keras
    import tensorflow as tf

    # Keras cuts the user's own lines out of an error too.
    keras.config.disable_traceback_filtering()
    if options.device == "gpu" and not options.gpu and not tf.config.list_physical_devices("GPU"):
        raise InputError("TensorFlow sees no GPU here.", hint="Leave out --device gpu.")
    if options.inter_op_threads:
        tf.config.threading.set_inter_op_parallelism_threads(options.inter_op_threads)
    spec = TargetSpec(**{**request["target"], "kind": TargetKind(request["target"]["kind"])})
    do = _note if request.get("kind") == "static" else _run
    captured = do(spec, options, folder, report)
    target = TargetNote(text=spec.text, kind=spec.kind.value, name=spec.name)
    captured.run = replace(captured.run, target=target, from_process_start=True)
    report("writing the graph", 0.97)
    write_run(folder, captured)
    shutil.rmtree(folder / DUMP, ignore_errors=True)
    error = captured.run.error
    return {"steps": captured.run.steps_done, "error": None if error is None else error.plain()}


def _run(spec: TargetSpec, options: CaptureOptions, folder: Path, report: Any) -> Captured:
    from analyzer.capture.resolve import resolve
    from analyzer.capture.runtime import profiling, run_steps

    with profiling(folder):
        return run_steps(lambda: resolve(spec, options), options.steps, report, dump=folder / DUMP)


def _note(spec: TargetSpec, options: CaptureOptions, folder: Path, report: Any) -> Captured:
    from analyzer.capture.estimate import note_step
    from analyzer.capture.resolve import resolve

    return note_step(lambda: resolve(spec, options), report, options, folder / DUMP)


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
        _pack(folder / GRAPH_FILE, encode_graph(graph))
    (folder / RUN_FILE).write_bytes(encode_run(run))


def _write_compiled(
    folder: Path, compiled: list[CompiledFunction]
) -> tuple[contract.CompiledFunction, ...]:
    """Write each compiled function's module and plan; return what the note says of them."""
    rows = []
    for number, one in enumerate(compiled):
        suffix = f"-{number}" if number else ""
        files: dict[str, str | None] = {"module": None, "plan": None}
        for key, content in (("module", one.module), ("plan", one.plan)):
            if content:
                files[key] = f"{key}{suffix}.hlo.pb.gz"
                _pack(folder / f"{key}{suffix}.hlo.pb.gz", content)
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


def _pack(path: Path, content: bytes) -> None:
    """Write a gzip file without name and time in it: the same content makes the same file."""
    with path.open("wb") as file:
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            packed.write(content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
