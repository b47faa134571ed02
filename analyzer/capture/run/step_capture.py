"""The plain-data result of a capture, from the live step: its note, its graph, and its failure."""

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.graph.op_phases import RanGraph, add_prefix
from analyzer.capture.graph.plain_graphs import (
    decode_name,
    find_compiled_calls,
    get_shape,
    read_inner_ops,
)
from analyzer.capture.run.instrumentation import Observations
from analyzer.capture.run.source_frames import (
    clean_message,
    describe_user_error,
    find_user_line,
)
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.targets.host_setup import SetupValues
from analyzer.capture.targets.step_program import Program
from analyzer.model import __version__
from analyzer.model.contract.fields import TwoSizes
from analyzer.model.contract.run_note import (
    CompiledFunction,
    DeviceNote,
    Failure,
    Input,
    Mode,
    Op,
    RunFile,
    StepConfig,
    ThreadsNote,
)
from analyzer.model.errors import ExitCode, FailureKind, TargetError
from analyzer.model.machine import count_cores
from analyzer.model.units import list_first
from analyzer.simulated_card.core_calls import describe_refusals
from analyzer.tracing.xla.xla_dumps import list_dumped_functions, read_dumped_plan

_MOST_NAMES = 3  # of ops or functions in a note

# A function that XLA compiled, and its module (HloProto) with the buffer assignment.
CompiledPlan: TypeAlias = tuple[CompiledFunction, bytes]


@dataclass
class Captured:
    """The plain-data result of a capture."""

    run: RunFile
    ops: list[Op] = field(default_factory=list)  # that ran; none for an eager step
    compiled: list[CompiledPlan] = field(default_factory=list)
    inside: list[Op] = field(default_factory=list)  # of compiled functions, before XLA


@dataclass
class Capturing:
    """The state of a capture in progress."""

    program: Program
    observed: Observations
    variables: StepVariables
    inputs: list[int | None]  # address of each
    wanted: int  # steps
    function: Any = None  # concrete; None if the step runs eagerly
    done: int = 0
    error: Failure | None = None
    # true values, if the step runs on a simulated card
    setup: SetupValues | None = None
    unknown: dict[str, str] | None = None  # op and its line -> what its value decides
    computed: tuple[
        str, ...
    ] = ()  # ops whose value decides; the host computes it for the card
    result: Sequence[tf.TensorSpec] = ()  # its tensors
    # peaks of further runs, on a simulated card
    repeats: list[TwoSizes] = field(default_factory=list)
    # ``assign`` sets whether unknown conditions are taken to be true
    assumed: Any = None


def trace_function(program: Program) -> Any:
    """Trace the step and return its concrete function; None for an eager step."""
    if program.function is None:
        return None

    # already concrete (a SavedModel's)
    if hasattr(program.function, "captured_inputs"):
        return program.function

    try:
        return program.function.get_concrete_function(*program.traced_args)
    except tf.errors.ResourceExhaustedError:
        raise  # variables are made while the step is traced
    except Exception as error:
        raise TargetError(
            f"The step cannot be traced: {describe_user_error(error).rstrip('.')}.",
            "Correct the model or the step; TensorFlow refuses it before any run.",
            kind=classify_failure(error),
        ) from error


def describe_capture(
    capturing: Capturing,
    partitions: Sequence[Any] = (),
    *,
    ops: list[Op] | None = None,
    others: Iterable[RanGraph] = (),
) -> Captured:
    """Return the result of a capture as plain data.

    Args:
        partitions: The graphs that the executor ran.
        ops: The ops that the executor would run; None to read them from the graphs.
        others: The graphs of other functions that ran.
    """
    program = capturing.program
    observed = capturing.observed
    variables = capturing.variables

    function = capturing.function
    sources: dict[str, str] = {}
    further = list(others)

    if function is not None and ops is None:
        graphs_run = () if program.config.jit else partitions
        own = RanGraph(function.graph, graphs_run, given=program.make_tensors())
        sources = own.sources
        ops = own.read_ops()
        further += own.list_loops()

    variables.refresh()
    every, gradients = _mark_ops(observed, function, ops or (), further)
    run = RunFile(
        step=_describe_step(program, observed, is_eager=function is None),
        device=_describe_device(),
        threads=note_threads(),
        steps_wanted=capturing.wanted,
        steps_done=capturing.done,
        notes=tuple(_list_notes(capturing, sources)),
        variables=variables.rows(observed.trained),
        snapshots=tuple(map(tuple, variables.snapshots)),
        inputs=_describe_inputs(program, function, capturing.inputs),
        outputs=tuple(map(get_shape, _find_outputs(program, capturing.result))),
        gradients=frozenset(gradients),
        functions=tuple(one.prefix for one in further),
        eager_gradients=dict(observed.eager_gradients),
        scopes=observed.scopes,
        source_lines=observed.find_only_lines(),
        function="" if function is None else decode_name(function.name),
        error=capturing.error,
        unknown_values=capturing.unknown,
        repeats=tuple(capturing.repeats),
        versions={
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
            "analyzer": __version__,
        },
    )

    return Captured(run, every)


def _list_notes(capturing: Capturing, sources: Mapping[str, str]) -> Iterator[str]:
    program = capturing.program
    yield from private.list_newer_versions()
    yield from program.messages
    yield from note_compiled_functions(program, capturing.function)
    yield from _note_computed(capturing.computed, sources)
    yield from _check_accumulation(program, capturing.done or capturing.wanted)


def _mark_ops(
    observed: Observations,
    function: Any,
    ops: Iterable[Op],
    others: Iterable[RanGraph],
) -> tuple[list[Op], set[str]]:
    """Return the ops of the step and of other functions with their phases, and the gradients."""
    finder = observed.find_phases()
    every: list[Op] = []
    gradients: set[str] = set()

    if function is not None:
        every, gradients = finder.mark(function.graph, ops)

    for one in others:
        marked, found = finder.mark(one.graph, one.read_ops())
        every += [add_prefix(op, one.prefix) for op in marked]
        gradients |= {one.prefix + tensor for tensor in found}

    return every, gradients


def _find_outputs(program: Program, result: Sequence[tf.TensorSpec]) -> list[Any]:
    """Return the symbolic outputs of the models, else the specs of the step's result."""
    outputs = [getattr(model, "outputs", None) for model in program.models]
    return tf.nest.flatten([one for one in outputs if one]) or list(result)


def _note_computed(names: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Return a note that names the values that the host computes for a simulated card."""
    named = [f"{one} at {sources[one]}" if one in sources else one for one in names]
    if not named:
        return []

    return [
        f"Values decide sizes, branches or trips: {list_first(named, _MOST_NAMES)}. The host "
        "computed them from the inputs and the first weights. On a card the ops after them may run "
        "in another order."
    ]


def _describe_step(
    program: Program,
    observed: Observations,
    *,
    is_eager: bool,
) -> StepConfig:
    config = program.config

    # A step of the user's own trains if it takes gradients.
    mode: Mode = "train" if observed.gradients or observed.eager_gradients else "infer"
    return replace(
        config,
        mode=config.mode or mode,
        optimizer=name_optimizer(program.optimizers),
        eager=is_eager and tf.executing_eagerly(),
        own=not config.mode,
    )


def name_optimizer(optimizers: Sequence[Any]) -> str:
    """Return the class of the optimizers, inside a ``LossScaleOptimizer``; "" for none or several."""
    inner = (getattr(one, "inner_optimizer", one) for one in optimizers)
    names = {type(one).__name__ for one in inner}

    return names.pop() if len(names) == 1 else ""


def _check_accumulation(program: Program, steps: int) -> list[str]:
    """Return a note for each optimizer that does not apply its gradients in the last step."""
    every = [
        getattr(one, "gradient_accumulation_steps", None) or 1
        for one in program.optimizers
    ]

    return [
        f"The optimizer accumulates gradients over {count} steps and applies them in the last, "
        f"which needs more memory. Step {steps - 1} (from 0) applies none: use --steps "
        f"{-(-steps // count) * count}."
        for count in every
        if steps % count
    ]


def note_compiled_functions(program: Program, function: Any) -> list[str]:
    """Return a note if XLA compiles functions inside a step that runs op by op."""
    if function is None or program.config.jit:
        return []

    # NAME of ``__inference_NAME_12`` and ``__inference___backward_NAME_12_34``
    names = dict.fromkeys(
        re.sub(r"^(__(inference|forward|backward)_)+|(_\d+)+$", "", name)
        for name in find_compiled_calls(function.graph)
    )
    if not names:
        return []

    return [f"XLA compiles {list_first([*names], _MOST_NAMES)} inside this step."]


def _describe_inputs(
    program: Program,
    function: Any,
    addresses: Sequence[int | None],
) -> tuple[Input, ...]:
    names = [f"input {index}" for index in range(len(program.args))]
    if function is not None:
        given = function.inputs[: len(function.inputs) - len(function.captured_inputs)]
        for index, tensor in enumerate(given[: len(names)]):
            names[index] = tensor.name.split(":")[0]

    return tuple(
        Input(name, tensor.dtype.name, get_shape(tensor), address)
        for name, tensor, address in zip(names, program.args, addresses, strict=True)
    )


def _describe_device() -> DeviceNote:
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return DeviceNote(kind="cpu", name=platform.processor() or platform.machine())

    details = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    )
    return DeviceNote(kind="gpu", name=str(details.get("device_name", gpus[0].name)))


# Reason that "No algorithm worked!" gives for each algorithm if none had memory for a trial.
_NO_MEMORY_TO_TRY = "RESOURCE_EXHAUSTED: Out of memory"

# Errors that mean a lack of memory on a simulated card, whose libraries refuse nothing else.
_SIMULATED_CARD_NO_MEMORY = (
    "Failed to call DoRnn",  # cudnn_rnn_ops.cc: no memory for workspace or reserve space
    "No algorithm worked!",  # conv_ops_gpu.h
    "No valid config found",  # XLA's autotuner.cc
)

# Word in the errors of XLA's passes and emitters, which quote the program that they refuse.
_XLA_PROGRAM = "HloModule"
_MOST_REASON = 100  # characters of such an error

# Words in TensorFlow's InvalidArgumentError if an op has more elements than an int counts.
_TOO_LARGE = ("2^31", "int32", "INT_MAX", "too many elements")


def classify_failure(failure: BaseException | None) -> FailureKind:
    """Return why TensorFlow or Keras raised an error.

    TensorFlow gives some reasons only as text; no other place reads that text.
    """
    if isinstance(failure, tf.errors.ResourceExhaustedError):
        return FailureKind.OUT_OF_MEMORY
    if isinstance(failure, SystemExit):
        return FailureKind.EXITED

    text = str(failure)
    if isinstance(failure, tf.errors.NotFoundError) and _NO_MEMORY_TO_TRY in text:
        return FailureKind.OUT_OF_MEMORY

    if "SIMULATED_CARDS" in os.environ and any(
        words in text for words in _SIMULATED_CARD_NO_MEMORY
    ):
        return FailureKind.OUT_OF_MEMORY

    if isinstance(failure, tf.errors.InternalError) and _XLA_PROGRAM in text:
        return FailureKind.NOT_COMPILED

    if isinstance(failure, tf.errors.InvalidArgumentError | ValueError):
        is_large = any(words in text for words in _TOO_LARGE)
        return FailureKind.TOO_LARGE if is_large else FailureKind.INVALID_SHAPE

    return FailureKind.OTHER


def describe_failure(failure: BaseException) -> Failure:
    """Return how a step failed, for the note."""
    kind = classify_failure(failure)
    name = type(failure).__name__
    message = str(failure)

    code = ExitCode.BAD_INPUT
    where = None
    is_waiting = isinstance(failure, KeyboardInterrupt)  # maybe for memory

    if is_waiting:
        name = "Interrupted"
        message = "The run was interrupted"
        code = ExitCode.INTERRUPTED
    elif isinstance(failure, SystemExit):
        message = f"The step called sys.exit({failure.code})."
    elif kind is FailureKind.OUT_OF_MEMORY:
        name = "ResourceExhaustedError"
        code = ExitCode.STEP_OUT_OF_MEMORY
    else:
        where = find_user_line(failure)

    message = clean_message(message)
    if kind is FailureKind.NOT_COMPILED:
        reason = shorten(message, _MOST_REASON, placeholder="…")
        message = (
            f"XLA cannot compile this step for this device ({reason}). It may run without XLA "
            "(jit_compile=False)."
        )

    has_size = isinstance(failure, tf.errors.ResourceExhaustedError)
    is_out = kind is FailureKind.OUT_OF_MEMORY and not has_size
    if "SIMULATED_CARDS" in os.environ and (is_out or is_waiting):
        message += describe_refusals()

    return Failure(type=name, message=message, exit_code=code, where=where, kind=kind)


def note_threads() -> ThreadsNote:
    """Return the number of parallel ops: of the configuration, the environment, or the cores.

    (``process_util.cc``: ``NumInterOpThreadsFromSessionOptions``)
    """
    count = tf.config.threading.get_inter_op_parallelism_threads()
    text = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    if not count and text.isdecimal():
        count = int(text)

    return ThreadsNote(inter_op=count or count_cores())


def add_compiled_functions(
    captured: Captured, function: Any, dump: Path, observed: Observations
) -> None:
    """Add the functions that XLA compiled, from its dump, and the ops of those in the step.

    A function outside the step, such as that of another model, has its own name as its caller.
    """
    calls = find_compiled_calls(function.graph)
    names = list_dumped_functions(dump)

    for name in names:
        plan, platform, compilations = read_dumped_plan(dump, name)
        note = CompiledFunction(
            ops=tuple(calls.get(name, [name])),
            function=name,
            platform=platform,
            compilations=compilations,
        )

        captured.compiled.append((note, plan))

    inside = read_inner_ops(function, names)
    captured.inside, found = observed.find_phases().mark(function.graph, inside)
    captured.run = replace(captured.run, gradients=captured.run.gradients | found)
