"""The trace of a step on a simulated card, with true values where they decide.

Wraps the functions by which TensorFlow creates ops, captures tensors, calls functions and builds loops.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from analyzer.capture.private_names import (
    FuncGraph,
    Function,
    call_inline,
    is_eager,
    is_jit_compiled,
    while_v2,
)
from analyzer.capture.run.host_loops import make_loop
from analyzer.capture.run.host_values import HostValues, NeedInlining, get_tables
from analyzer.capture.run.step_capture import Capturing, trace_function
from analyzer.capture.run.wrapped_calls import wrap_calls

# Python's limit while the step is traced: a slice is as long as a model
_MOST_FRAMES = 20_000


def trace_with_true_values(state: Capturing) -> Any:
    """Trace the step; on a simulated card, with true values where they decide."""
    program = state.program
    if state.setup is None or program.config.jit:
        return trace_function(program)

    values = HostValues(state.setup, program.args)
    with give_true_values(values):
        function = trace_function(program)
        state.unknown = values.unknown
        state.assumed = values.assumed
        state.computed = tuple(values.computed)

        return function


@contextmanager
def give_true_values(values: HostValues) -> Iterator[None]:
    """Give deciding ops true values in a block that traces the step."""
    limit = sys.getrecursionlimit()
    with ExitStack() as stack:
        stack.callback(sys.setrecursionlimit, limit)
        sys.setrecursionlimit(max(limit, _MOST_FRAMES))

        def capture(
            old: Any, graph: Any, tensor: Any, *args: Any, **kwargs: Any
        ) -> Any:
            is_own = not (values.is_making or values.is_compiled or values.is_program)
            if is_own and is_eager(tensor) and "CPU" in tensor.device:
                tensor = values.setup.move(tensor)

            inside = old(graph, tensor, *args, **kwargs)
            if inside is not tensor:
                get_tables(graph).captured[inside.name] = tensor

            return inside

        def record_initial(next_creator: Any, **settings: Any) -> Any:
            variable = next_creator(**settings)
            initial = settings.get("initial_value")
            values.setup.remember(variable, initial)

            if values.depth:
                values.created.append((variable, initial))

            return variable

        stack.enter_context(tf.variable_creator_scope(record_initial))

        for owner, name, call in (
            (FuncGraph, "_create_op_internal", values.create),
            (FuncGraph, "capture", capture),
            (Function, "__call__", partial(_call_function, values)),
            (while_v2, "while_loop", partial(make_loop, values)),
        ):
            stack.enter_context(wrap_calls(owner, name, call))

        yield


def _call_function(
    values: HostValues, old: Any, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a function inside the step; without a function of its own if its arguments decide."""
    if tf.executing_eagerly():
        return old(function, *args, **kwargs)

    if is_jit_compiled(function):
        before = values.is_compiled
        values.is_compiled = True

        try:
            return old(function, *args, **kwargs)
        finally:
            values.is_compiled = before

    # An interrupted trace leaves a function half initialized: later calls would return None.
    if function in values.inlined:
        return call_inline(function, *args, **kwargs)

    values.depth += 1
    count = len(values.created)

    try:
        return old(function, *args, **kwargs)
    except NeedInlining:
        values.inlined.add(function)

        # The function that would initialize them after its trace is left out.
        with tf.init_scope():
            for variable, value in values.created[count:]:
                if not tf.raw_ops.VarIsInitializedOp(resource=variable.handle):
                    variable.assign(value() if callable(value) else value)
    finally:
        values.depth -= 1
        del values.created[count:]

    return call_inline(function, *args, **kwargs)
