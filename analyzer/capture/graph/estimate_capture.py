"""Capture everything that an estimate needs of a step, without running it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import keras
import tensorflow as tf
from numpy.linalg import LinAlgError

from analyzer.capture import private_names as private
from analyzer.capture.graph.executor_graph import StaticStep, build_executor_graph
from analyzer.capture.graph.gpu_graph import build_gpu_graph, pretend_gpu
from analyzer.capture.graph.input_pipeline import count_held_bytes
from analyzer.capture.graph.plain_graphs import count_bytes, read_inner_ops
from analyzer.capture.graph.unbacked_variables import (
    FROM_NUMPY,
    build_slots,
    leave_out_values,
    mark_numpy_tensors,
)
from analyzer.capture.run.instrumentation import observe_step
from analyzer.capture.run.step_capture import (
    Captured,
    Capturing,
    describe_capture,
    note_threads,
    trace_function,
)
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.targets.keras_api import (
    find_open_optimizers,
    get_optimizer_variables,
)
from analyzer.capture.targets.step_program import Program
from analyzer.capture.xla.xla_lowering import (
    build_compiled_graph,
    compile_calls,
    is_compiled,
)
from analyzer.cards import Gpu, find_gpu
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import DeviceNote
from analyzer.model.errors import TargetError
from analyzer.model.graph.host_copies import insert_host_copies
from analyzer.model.interrupts import pause_collector
from analyzer.model.units import format_bytes

_ZEROS_ERRORS: Final = (tf.errors.OpError, ArithmeticError, AssertionError, LinAlgError)
"""Errors of code that may have failed because the weights are zeros."""
_CUSTOM_JIT: Final = {
    True: "Estimated with XLA: the tf.function has jit_compile=True; --no-jit runs it op by op.",
    False: "Estimated op by op: the tf.function has no jit_compile=True. Keras' fit would compile the "
    "same model's step with XLA, and needs a different amount.",
}
"""Sentence on the use of XLA for a custom ``tf.function`` on a GPU."""


def capture_unrun_step(
    make: Callable[[], Program],
    report: Callable[[str, float], None],
    options: CaptureOptions,
    dump: Path | None = None,
) -> Captured:
    """Build the step, trace it, and return the graph that would run.

    The model's variables take no memory. If the user's code needs their values (it calls the model to
    build it), ``make`` is called again with real variables.
    """
    folder = Path.cwd()
    try:
        return capture_graph(make, report, options, dump, unbacked=True)
    except (TargetError, tf.errors.OpError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _ZEROS_ERRORS):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
    os.chdir(folder)  # the code of the target may have changed it
    keras.utils.clear_session()
    capture = capture_graph(make, report, options, dump)
    message = "The model's code reads its weights, so they were allocated in full."
    capture.run = replace(capture.run, notes=(*capture.run.notes, message))
    return capture


def capture_graph(
    make: Callable[[], Program],
    report: Callable[[str, float], None],
    options: CaptureOptions,
    dump: Path | None = None,
    *,
    unbacked: bool = False,
) -> Captured:
    """Capture the graph of a step, with the variables as they are unless they are ``unbacked``."""
    gpu = find_gpu(options.gpu) if options.gpu else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            pretend_gpu(cudnn=not options.jit) if gpu else contextlib.nullcontext()
        )
        observed = stack.enter_context(observe_step())
        stack.enter_context(mark_numpy_tensors())
        stack.enter_context(
            leave_out_values() if unbacked else contextlib.nullcontext()
        )
        report("building the model", 0.05)
        program = make()
        if gpu is not None:
            reason = program.jit_reason or _CUSTOM_JIT[bool(program.config.jit)]
            program.messages.append(options.note or reason)
        for optimizer, weights in find_open_optimizers(program) if unbacked else ():
            build_slots(optimizer, weights)
        report(f"tracing the step{_describe_first_bound(program)}", 0.2)
        (variables := StepVariables(program)).refresh()
        function = _trace(program)
        variables.function = function
        stack.enter_context(pause_collector())  # no code of the user runs from here on
        report("optimising the graph", 0.5)
        step = _build_graph(program, function, gpu, options)
        given = program.make_tensors()
        report(
            "compiling with XLA" if program.config.jit else "compiling functions", 0.6
        )
        compiled, messages = compile_calls(function, step.ops, dump, given)
        program.messages.extend(messages)
        report("reading the graph", 0.9)
        held = [*given, *function.captured_inputs]
        inputs: list[int | None] = [None] * len(program.args)
        state = Capturing(
            program, observed, variables, inputs, options.step_count, function
        )
        capture = describe_capture(state, ops=list(step.ops))
    capture.run = replace(
        capture.run,
        kind="static",
        device=DeviceNote(kind="gpu", name=gpu.name, id=gpu.id)
        if gpu
        else capture.run.device,
        data_bytes=count_held_bytes(held)
        | {"inputs": sum(count_bytes(one) for one in held if hasattr(one, FROM_NUMPY))},
        threads=note_threads(caches=True),
        sizes=step.sizes,
        assumed=dict(options.assume),
        like=options.like,
    )
    inside = read_inner_ops(function, [one.note.function for one in compiled])
    return replace(capture, compiled=compiled, inside=inside)


def _trace(program: Program) -> Any:
    """Return the concrete function of the step."""
    if program.function is None:
        raise TargetError(
            "The step runs eagerly: there is no graph to predict from.",
            hint=program.eager_hint,
        )
    return trace_function(program)


def _build_graph(
    program: Program, function: Any, gpu: Gpu | None, options: CaptureOptions
) -> StaticStep:
    given = program.make_tensors()
    if gpu is not None and not program.config.jit:
        limit_bytes, assumed = options.memory_limit_bytes, options.assume
        return build_gpu_graph(function, gpu, limit_bytes, given=given, assumed=assumed)
    if not program.config.jit:
        return build_executor_graph(function, given, options.assume)
    step = build_compiled_graph(function, given)
    if gpu is None:
        return step
    ops = [
        replace(op, device="") for op in step.ops
    ]  # placement here knew only the CPU
    is_called = not is_compiled(
        function
    )  # its arguments come from an iterator on the host
    return replace(step, ops=tuple(insert_host_copies(ops) if is_called else ops))


def _describe_first_bound(program: Program) -> str:
    """Return a first bound of the step's peak, to append to a stage; empty if no model is known.

    The lower bound are parameters and slots, which live as long as the process. The rough upper one adds
    a gradient of each parameter, and each layer's output twice: as such, and as a gradient or temporary.
    """
    variables = {id(one): one for model in program.models for one in model.variables}
    for optimizer in program.optimizers:
        variables |= {id(one): one for one in get_optimizer_variables(optimizer)}
    low_bytes = high_bytes = sum(map(count_bytes, variables.values()))
    if not low_bytes:
        return ""
    is_training = program.config.mode == "train"
    for model in program.models:
        if is_training:
            high_bytes += sum(map(count_bytes, model.trainable_variables))
        outputs = [
            out
            for layer in private.get_layers(model)
            for out in private.get_layer_outputs(layer)
        ]
        outputs_bytes = sum(
            count_bytes(out, program.config.batch_size or 1) for out in outputs
        )
        high_bytes += (1 + is_training) * outputs_bytes
    return f"; first bound: {format_bytes(low_bytes)} to roughly {format_bytes(high_bytes)}"
