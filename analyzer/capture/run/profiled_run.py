"""Run a step several times under the profiler and record what the trace alone does not say."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import keras
import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.graph.plain_graphs import get_shape
from analyzer.capture.graph.shape_inference import infer_executed_outputs
from analyzer.capture.private_names import context, disable_python_tracing, list_newer_versions
from analyzer.capture.process.phantom_launch import check_collectives
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.source_frames import clean_message, describe_user_error, find_user_line
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.run.tensor_addresses import find_address
from analyzer.capture.targets.step_program import Program
from analyzer.capture.xla.xla_dumps import remove_dump_flags
from analyzer.capture.xla.xla_lowering import LoweredFunction, read_compiled_functions
from analyzer.model.contract.graph_note import Op, TracedGraph
from analyzer.model.contract.run_note import (
    DeviceNote,
    Failure,
    GraphKind,
    Input,
    Mode,
    RunFile,
    StepConfig,
    StepNote,
)
from analyzer.model.errors import ExitCode, FailureKind, InputError, TargetError
from analyzer.model.gc_pause import pause_collector
from analyzer.model.version import __version__
from analyzer.tracing.parse.xplane import MARKER_PREFIX

_STEP_NAME: Final = "train"  # what Keras' own TensorBoard callback calls its steps
# What changes how TensorFlow allocates; other variables are none of a report's business.
_ENVIRONMENT: Final = (
    "TF_CPU_",
    "TF_CUDNN_",
    "TF_CUBLAS_",
    "TF_CUDA_",
    "TF_DETERMINISTIC_",
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
    "TF_ENABLE_GPU_GARBAGE_COLLECTION",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_",
    "TF_NUM_",
    "TF_USE_CUBLASLT",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass
class Captured:
    """What a capture leaves behind, as plain data.

    Attributes:
        run: The note to be saved as ``run.json``.
        ops: The ops that ran, empty for an eager step.
        traced: The graph as it was traced, before TensorFlow optimised it.
        compiled: The functions in it that XLA compiles.
        inside: The ops of those functions, as they were traced.
    """

    run: RunFile
    ops: list[Op] = field(default_factory=list)
    traced: list[TracedGraph] = field(default_factory=list)
    compiled: list[LoweredFunction] = field(default_factory=list)
    inside: list[Op] = field(default_factory=list)


@dataclass(kw_only=True)
class Capturing:
    """A capture under way.

    Attributes:
        program: The step.
        observed: What was seen while it was traced.
        variables: Its variables.
        inputs: Address of each tensor that it is fed, None where unknown.
        function: Its concrete function, None where it runs eagerly.
        wanted: Steps to run, or to predict.
        started: The first step was begun.
        done: Steps run.
        error: How it failed; None where it did not.
    """

    program: Program
    observed: Observations
    variables: StepVariables
    inputs: list[int | None]
    wanted: int
    function: Any = None
    started: bool = False
    done: int = 0
    error: Failure | None = None


@contextlib.contextmanager
def profiling(logdir: Path) -> Iterator[None]:
    """Trace the block into ``logdir``; the trace is written however the block ends."""
    tf.profiler.experimental.start(str(logdir))
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # and no copy of it that the user's code forked
            tf.profiler.experimental.stop()


def run_steps(
    make: Callable[[], Program],
    steps: int,
    report: Callable[[str, float], None],
    *,
    own_process: bool = True,
    dump: Path | None = None,
    is_trial: bool = False,
) -> Captured:
    """Make the step and run it ``steps`` times; call inside ``profiling``, but for a trial.

    An error of the step itself ends the run and is recorded, not raised: the trace up to there is
    what the user came for. An error of making the step is raised.

    Args:
        make: Returns the step; its allocations belong to the trace.
        steps: How often to run it.
        report: Called with the stage and the share done.
        own_process: The process was started for this; else the user's variables keep their place,
            and get their values back.
        dump: Folder that XLA leaves compiled modules in, None where it leaves none.
        is_trial: Nothing is asked but whether the step comes to its end: its graph is not read.
    """
    with observe_step() as observed:
        report("building the model", 0.0)
        try:
            with disable_python_tracing():
                program = make()
        except (TargetError, tf.errors.ResourceExhaustedError) as failure:
            cause = failure.__cause__ if isinstance(failure, TargetError) else failure
            if not isinstance(cause, tf.errors.ResourceExhaustedError):
                raise
            # The weights or the inputs alone do not fit: that, too, is what the user came to see.
            return _without_program(cause)
        observed.eager = program.function is None
        state = Capturing(
            program=program,
            observed=observed,
            variables=StepVariables(program),
            inputs=[find_address(tensor) for tensor in program.args],
            wanted=steps,
        )
        partitions: list[Any] = []
        try:
            kept = None if is_trial else partitions
            _run(state, kept, steps, report, own_process=own_process)
        except InputError:
            raise
        except (KeyboardInterrupt, SystemExit, Exception) as failure:
            if isinstance(failure, KeyboardInterrupt) and not state.started:
                raise  # nothing of the step ran: there is nothing to see
            state.error = describe_failure(failure)
    if is_trial:
        state.function = None
    report("reading the graph", 0.92)
    with pause_collector():
        found = captured(state, partitions)
        if dump is not None and state.function is not None:
            found.compiled = read_compiled_functions(state.function, dump)
    return found


def _run(
    state: Capturing,
    partitions: list[Any] | None,
    steps: int,
    report: Callable[[str, float], None],
    *,
    own_process: bool,
) -> None:
    """Trace the step and run it, keeping in ``state`` how far it came."""
    report("tracing the step", 0.1)
    with disable_python_tracing():
        state.function = state.variables.function = trace_function(state.program)
    if "PHANTOM_CARDS" in os.environ and state.function is not None:
        check_collectives(
            {
                op.type
                for graph in graphs.collect_graphs(state.function.graph)
                for op in graph.get_operations()
            },
            tf.__version__,
        )
    values = None
    if own_process:
        state.variables.rehome_small()
    else:
        values = state.variables.values()
    try:
        _snapshot(state.variables, 0)
        for index in range(steps):
            report(f"running step {index + 1} of {steps}", 0.3 + 0.6 * index / steps)
            state.started = True
            wanted = index == 0 and state.function is not None
            with _keeping_graphs(partitions if wanted else None):
                with tf.profiler.experimental.Trace(_STEP_NAME, step_num=index, _r=1):
                    # Kept until the next step returns, as a training loop keeps its logs.
                    outputs = state.program.call()
                    _wait_for(outputs)
            state.done += 1
            if index == 0 and state.function is None:
                check_promises(state.program, None)
            _snapshot(state.variables, index + 1)
    finally:
        if values is not None:
            state.variables.restore(values)


_NO_MEMORY_TO_TRY: Final = "RESOURCE_EXHAUSTED: Out of memory"
"""Reason that "No algorithm worked!" gives for each algorithm if none had memory for a trial."""

_PHANTOM_NO_MEMORY: Final = (
    "Failed to call DoRnn",  # cudnn_rnn_ops.cc: no memory for workspace or reserve space
    "No algorithm worked!",  # conv_ops_gpu.h
    "No valid config found",  # XLA's autotuner.cc
)
"""Errors that mean a lack of memory on a phantom card, whose libraries refuse nothing else."""

_TOO_LARGE: Final = ("2^31", "int32", "INT_MAX", "too many elements")
"""Words in TensorFlow's InvalidArgumentError if an op has more elements than an int counts."""


def classify_failure(failure: BaseException | None) -> FailureKind:
    """Return why TensorFlow or Keras raised an error.

    TensorFlow gives some reasons only as text; this is the only place that reads it.
    """
    if isinstance(failure, tf.errors.ResourceExhaustedError):
        return FailureKind.OUT_OF_MEMORY
    text = str(failure)
    if isinstance(failure, tf.errors.NotFoundError) and _NO_MEMORY_TO_TRY in text:
        return FailureKind.OUT_OF_MEMORY
    if "PHANTOM_CARDS" in os.environ and any(words in text for words in _PHANTOM_NO_MEMORY):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(failure, SystemExit):
        return FailureKind.EXITED
    if isinstance(failure, tf.errors.InvalidArgumentError | ValueError):
        is_large = any(words in text for words in _TOO_LARGE)
        return FailureKind.TOO_LARGE if is_large else FailureKind.INVALID_SHAPE
    return FailureKind.OTHER


def describe_failure(failure: BaseException) -> Failure:
    """Return how a step failed, for the note."""
    kind = classify_failure(failure)
    if isinstance(failure, KeyboardInterrupt):
        return _make_failure("Interrupted", "The run was interrupted.", ExitCode.INTERRUPTED)
    if isinstance(failure, SystemExit):
        message = f"The step called sys.exit({failure.code})."
        return _make_failure("SystemExit", message, ExitCode.BAD_INPUT, kind)
    if kind is FailureKind.OUT_OF_MEMORY:
        return _make_failure(
            "ResourceExhaustedError", str(failure), ExitCode.STEP_OUT_OF_MEMORY, kind
        )
    error = _make_failure(type(failure).__name__, str(failure), ExitCode.BAD_INPUT, kind)
    return replace(error, where=find_user_line(failure))


def _without_program(failure: BaseException) -> Captured:
    """Return what is known where memory ran out before there was a step."""
    program = Program(call=lambda: None, args=(), config=StepConfig())
    error = describe_failure(failure)
    return captured(
        Capturing(
            program=program,
            observed=Observations(),
            variables=StepVariables(program),
            inputs=[],
            wanted=0,
            error=replace(error, where=find_user_line(failure)),
        )
    )


def trace_function(program: Program) -> Any:
    """Return the step's concrete function, traced now; None for an eager step."""
    if program.function is None:
        return None
    if hasattr(program.function, "captured_inputs"):  # already concrete (a SavedModel's)
        return program.function
    try:
        function = program.function.get_concrete_function(*program.traced_args)
    except tf.errors.ResourceExhaustedError:
        raise  # variables are made while the step is traced
    except Exception as error:
        raise TargetError(
            f"The step cannot be traced: {describe_user_error(error)}",
            kind=classify_failure(error),
        ) from error
    check_promises(program, function)
    return function


def check_promises(program: Program, function: Any) -> None:
    """Hold the step against what was asked for.

    Raises:
        InputError: it does something else.
    """
    for promise in program.promises:
        promise.check(function)


def _wait_for(outputs: Any) -> None:
    """Wait until a GPU is done, so that the step's marker spans its work."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()


def _snapshot(variables: StepVariables, index: int) -> None:
    with tf.profiler.experimental.Trace(f"{MARKER_PREFIX}snapshot", index=index):
        variables.snapshot()


@contextlib.contextmanager
def _keeping_graphs(partitions: list[Any] | None) -> Iterator[None]:
    """Keep the graphs that the executor runs in the block, as TensorFlow optimised them.

    Args:
        partitions: Where they are kept; None for none.
    """
    if partitions is None:
        yield
        return
    context.enable_run_metadata()
    try:
        yield
    finally:
        metadata = context.export_run_metadata()
        context.disable_run_metadata()
        if metadata is not None:
            for function in metadata.function_graphs:
                partitions.extend(function.partition_graphs)


def _make_failure(
    name: str, message: str, code: ExitCode, kind: FailureKind = FailureKind.OTHER
) -> Failure:
    return Failure(type=name, message=clean_message(message), exit_code=code, kind=kind)


def captured(
    capturing: Capturing, partitions: Sequence[Any] = (), *, ops: list[Op] | None = None
) -> Captured:
    """Return what was found as plain data.

    Args:
        capturing: What was found.
        partitions: The graphs that the executor ran.
        ops: The ops that it would run, where nothing ran.
    """
    program, observed, variables = capturing.program, capturing.observed, capturing.variables
    function, inputs = capturing.function, capturing.inputs
    traced: list[TracedGraph] = []
    graph_kind: GraphKind = "executed" if ops is not None else ""
    if function is not None:
        traced = graphs.read_traced_graphs(function.graph)
    if function is not None and ops is None:
        sources = graphs.find_sources(function.graph)
        if program.config.jit or not partitions:
            ops = graphs.read_traced_ops(function.graph, sources)
            graph_kind = "traced"
        else:
            ops = graphs.read_executed_ops(
                partitions, infer_executed_outputs(function, partitions, program.args), sources
            )
            graph_kind = "executed"
    names = _argument_names(function, len(program.args))
    variables.refresh()
    own_graph = id(function.graph) if function is not None else 0
    run = RunFile(
        step=_step_note(program, observed, is_eager=function is None),
        device=_device(),
        steps_wanted=capturing.wanted,
        steps_done=capturing.done,
        notes=(
            *list_newer_versions(),
            *program.messages,
            *_accumulation(program, capturing.done or capturing.wanted),
        ),
        variables=variables.rows(),
        snapshots=tuple(tuple(addresses) for addresses in variables.snapshots),
        inputs=tuple(
            Input(names[index], tensor.dtype.name, get_shape(tensor), inputs[index])
            for index, tensor in enumerate(program.args)
        ),
        gradients=frozenset(name for graph, name in observed.gradients if graph == own_graph),
        nested_gradients=frozenset(
            name for graph, name in observed.gradients if graph != own_graph
        ),
        eager_gradients={mark: tuple(found) for mark, found in observed.eager_gradients.items()},
        scopes=observed.scopes,
        graph_kind=graph_kind,
        function=_text(getattr(function, "name", "")),
        error=capturing.error,
        versions=versions(),
        environment=_environment(),
    )
    return Captured(run, ops or [], traced)


def _mode(observed: Observations) -> str:
    """Tell what a step of the user's own does: one that asks for gradients trains."""
    return "train" if observed.gradients or observed.eager_gradients else "infer"


def _step_note(program: Program, observed: Observations, *, is_eager: bool) -> StepNote:
    config = program.config
    made_by = type(program.optimizers[0]).__name__ if program.optimizers else ""
    return StepNote(
        mode=cast(Mode, config.mode or _mode(observed)),
        jit=config.jit,
        batch_size=config.batch_size,
        optimizer=config.optimizer or made_by,
        dtype_policy=config.dtype_policy,
        eager=is_eager,
        own=not config.mode,
    )


def _environment() -> dict[str, str]:
    """Return the variables that change how TensorFlow allocates."""
    return {
        name: value
        for name, text in sorted(os.environ.items())
        if name.startswith(_ENVIRONMENT)
        and (value := remove_dump_flags(text) if name == "XLA_FLAGS" else text)
    }


def _accumulation(program: Program, steps: int) -> list[str]:
    """Say where the last step is none of those that apply accumulated gradients."""
    notes = []
    for optimizer in program.optimizers:
        every = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        if steps % every:
            notes.append(
                f"Gradients are accumulated over {every} steps and applied in every {every}th, which "
                f"needs more; step {steps - 1} (from 0) applies none. --steps "
                f"{-(-steps // every) * every} ends with one that does."
            )
    return notes


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name or "")


def _argument_names(function: Any, count: int) -> list[str]:
    names = [f"input {index}" for index in range(count)]
    if function is not None:
        given = len(function.inputs) - len(function.captured_inputs)
        for index, tensor in enumerate(function.inputs[: min(count, given)]):
            names[index] = tensor.name.split(":")[0]
    return names


def _device() -> DeviceNote:
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return DeviceNote(kind="cpu", name=platform.processor() or platform.machine())
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return DeviceNote(kind="gpu", name=str(details.get("device_name", gpus[0].name)))


def versions() -> dict[str, str]:
    """Return the versions that a bug report needs."""
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "analyzer": __version__,
    }
