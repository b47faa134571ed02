"""Capture everything that an estimate needs of a step, without running it."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from numpy.linalg import LinAlgError

from analyzer.capture.graph.executor_graph import (
    OpsAndSizes,
    build_gpu_graph,
    instantiate,
    pretend_gpu,
    read_step,
)
from analyzer.capture.graph.unbacked_variables import leave_out_values
from analyzer.capture.run.instrumentation import observe_step
from analyzer.capture.run.step_capture import (
    Captured,
    Capturing,
    describe_capture,
    note_threads,
    trace_function,
)
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.targets.keras_api import find_open_optimizers
from analyzer.capture.targets.step_program import Program
from analyzer.cards import Gpu, find_gpu
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import DeviceNote
from analyzer.model.errors import TargetError
from analyzer.model.interrupts import pause_collector
from analyzer.model.progress import report_stage

# Errors of code that may have failed because the weights are zeros.
_ZEROS_ERRORS = (tf.errors.OpError, ArithmeticError, AssertionError, LinAlgError)
_NO_XLA = "Without a run, a step that XLA compiles cannot be estimated."


def capture_unrun_step(
    make: Callable[[], Program],
    options: CaptureOptions,
) -> Captured:
    """Build the step, trace it, and return the graph that would run.

    The model's variables take no memory. If the user's code needs their values (it calls the model to
    build it), ``make`` is called again with real variables.
    """
    folder = Path.cwd()

    try:
        return capture_graph(make, options, unbacked=True)
    except (TargetError, tf.errors.OpError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _ZEROS_ERRORS):
            cause = cause.__cause__ or cause.__context__

        if cause is None:
            raise

    os.chdir(folder)  # the code of the target may have changed it
    keras.utils.clear_session()
    capture = capture_graph(make, options)
    message = "The model's code reads its weights, so they were allocated in full."
    capture.run = replace(capture.run, notes=(*capture.run.notes, message))

    return capture


def capture_graph(
    make: Callable[[], Program],
    options: CaptureOptions,
    *,
    unbacked: bool = False,
) -> Captured:
    """Capture the graph of a step, with the variables as they are unless they are ``unbacked``."""
    gpu = find_gpu(options.gpu) if options.gpu else None
    with ExitStack() as stack:
        if gpu is not None:
            stack.enter_context(pretend_gpu())

        observed = stack.enter_context(observe_step())
        if unbacked:
            stack.enter_context(leave_out_values())

        report_stage("building the model")
        program = make()

        for optimizer, weights in find_open_optimizers(program) if unbacked else ():
            optimizer.build(weights)

        report_stage("tracing the step")
        variables = StepVariables(program)
        variables.refresh()
        function = _trace(program)
        variables.function = function

        stack.enter_context(pause_collector())  # no code of the user runs from here on
        report_stage("optimising the graph")
        ops, sizes = _build_graph(program, function, gpu, options)

        report_stage("reading the graph")
        inputs: list[int | None] = [None] * len(program.args)
        state = Capturing(
            program,
            observed,
            variables,
            inputs,
            options.step_count,
            function,
        )

        capture = describe_capture(state, ops=ops)

    device = capture.run.device
    if gpu is not None:
        device = DeviceNote(kind="gpu", name=gpu.name, id=gpu.id)

    capture.run = replace(
        capture.run,
        kind="static",
        device=device,
        threads=note_threads(),
        sizes=tuple(sizes),
        assumed=dict(options.assume),
    )

    return capture


def _trace(program: Program) -> Any:
    """Return the concrete function of the step."""
    if program.function is None:
        raise TargetError(
            "The step runs eagerly: there is no graph to predict from.",
            hint="Decorate it with @tf.function, or compile without run_eagerly; or measure it as it "
            "is: analyze trace.",
        )

    return trace_function(program)


def _build_graph(
    program: Program,
    function: Any,
    gpu: Gpu | None,
    options: CaptureOptions,
) -> OpsAndSizes:
    """Return the ops that would run, and the sizes that data decide."""
    if program.config.jit:
        raise TargetError(
            _NO_XLA,
            hint="Run it: analyze trace; or estimate it op by op with --no-jit.",
        )

    given = program.make_tensors()
    assumed = options.assume
    if gpu is None:
        return read_step(function, instantiate(function), given, assumed)

    return build_gpu_graph(function, gpu, options.memory_limit_bytes, given, assumed)
