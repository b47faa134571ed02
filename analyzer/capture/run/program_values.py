"""Values that eager ops and a program's own functions lack on a simulated card.

No kernel of the card computes. An op whose result has a size that depends on values also runs on the
host: with true inputs if they lie there, otherwise with inputs that select everything or nothing.
Functions that the program calls are traced as a step is (``host_values.py``).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.run.host_values import (
    HOST,
    SIZED,
    HostValues,
    give_true_values,
    link_gradient,
    select_all_or_none,
)
from analyzer.capture.run.wrapped_calls import Arguments, wrap_calls
from analyzer.capture.targets.host_setup import SetupValues
from analyzer.capture.watch.user_lines import find_calling_line

_READS = {
    "__bool__": "a branch",
    "__int__": "a number in Python",
    "__index__": "a number in Python",
}


# Elements of an integer tensor up to which its value may be a shape.
_FEW = 64


# Op types whose kernels for a card run on the host
_RUN_ON_HOST = ("OptionalHasValue", "VarIsInitializedOp")


class ProgramValues:
    """Gives ops of an eager step or of a script their sizes, and names unknown values."""

    def __init__(self, setup: SetupValues | None = None) -> None:
        self._functions = HostValues(setup or SetupValues(), (), is_program=True)

        # Op and its line -> what its value decides
        self.unknown = self._functions.unknown
        self._selects_all = False
        self._true_lines: set[str] = set()  # truths that were taken for true
        self._is_running = False  # an op of ours

    def assign(self, selects_all: bool) -> None:
        """Set whether unknown conditions are taken to be true."""
        self._selects_all = selects_all
        self._true_lines.clear()
        if self._functions.assumed is not None:
            self._functions.assumed.assign(selects_all)

    @contextlib.contextmanager
    def give(self) -> Iterator[None]:
        """Give eager ops in the block their sizes."""
        with contextlib.ExitStack() as stack:
            execute = private.pywrap_tfe, "TFE_Py_FastPathExecute", self._execute
            stack.enter_context(wrap_calls(*execute))
            call = private.Function, "__call__", self.call_function
            stack.enter_context(wrap_calls(*call))

            for name, decides in _READS.items():
                read = functools.partial(self._read, name, decides)
                stack.enter_context(wrap_calls(private.EagerTensorBase, name, read))

            yield

    def call_function(
        self, call: Callable[..., Any], function: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a ``tf.function``; it is traced with true values where they decide."""
        is_compiled = private.is_jit_compiled(function)
        if is_compiled or not tf.executing_eagerly() or self._functions.depth:
            return call(function, *args, **kwargs)

        with give_true_values(self._functions):
            return call(function, *args, **kwargs)

    # Eager ops

    def _execute(
        self, old: Any, context: Any, op_type: str, name: Any, *args: Any
    ) -> Any:
        """Run an eager op; if its values decide a size, also on the host."""
        places = SIZED.get(op_type)
        is_on_host = "CPU" in private.context.context().device_name
        if self._is_running or is_on_host:
            return old(context, op_type, name, *args)

        if places is None:
            own = old(context, op_type, name, *args)
            if op_type in _RUN_ON_HOST:
                return private.copy_to_device(own, HOST)
            if not _is_small_integer(own):
                return own

            run = functools.partial(old, context, op_type, None)
            return self._keep_value(own, run, args, private.count_inputs(op_type))

        with self._running_own_ops():
            count = private.count_inputs(op_type)
            inputs = [tf.convert_to_tensor(one) for one in args[:count]]
            attributes = args[count:]
            results = self._find_results(old, context, op_type, inputs, attributes)

            # The kernel, too, allocates its results before it frees its temporaries.
            own = old(context, op_type, name, *inputs, *attributes)

        if results is None:
            return own

        tf.nest.map_structure(link_gradient, results, own)

        return results

    def _keep_value(
        self,
        own: Any,
        run: Callable[..., Any],
        args: Arguments,
        count: int,
    ) -> Any:
        """Return an integer of the card with its value, if the host has all inputs of its op.

        A shape that is transposed, for example, lies on the card afterwards.
        """
        if not args[:count] or not all(map(_is_on_host, args[:count])):
            return own

        with self._running_own_ops():
            with private.stop_recording(), tf.device(HOST):
                return self._functions.setup.copy(run(*args))

    @contextlib.contextmanager
    def _running_own_ops(self) -> Iterator[None]:
        """Leave the ops of the block, which are ours, as they are."""
        self._is_running = True

        try:
            yield
        finally:
            self._is_running = False

    def _find_results(
        self,
        old: Any,
        context: Any,
        op_type: str,
        inputs: list[Any],
        attributes: Arguments,
    ) -> Any:
        """Return results of true or assumed sizes on the card; None if they are too large."""
        given = list(inputs)
        with private.stop_recording(), tf.device(HOST):
            for place in SIZED[op_type]:
                if place >= len(inputs):
                    continue

                original = self._functions.setup.find_original(inputs[place])
                if original is None:
                    self._note(op_type, "a size")
                    original = self._assume(op_type, inputs[place], place, attributes)

                if original is None:
                    return None

                given[place] = original

            results = old(context, op_type, None, *given, *attributes)
            return tf.nest.map_structure(self._functions.setup.copy, results)

    def _assume(
        self,
        op_type: str,
        tensor: Any,
        place: int,
        attributes: Arguments,
    ) -> Any:
        """Return an input with which an op selects everything or nothing; None if there is none."""
        parts = 1
        if op_type == "DynamicPartition":
            parts = attributes[attributes.index("num_partitions") + 1]

        shape = tf.constant(tensor.shape.as_list(), tf.int32)
        selects_all = tf.constant(self._selects_all)

        return select_all_or_none(
            op_type,
            tensor,
            place,
            shape,
            selects_all,
            parts,
        )

    def _read(self, method: str, decides: str, old: Any, tensor: Any) -> Any:
        """Name a value of the card that Python reads with a method of a tensor."""
        if "GPU" not in tensor.backing_device or self._is_running:
            return old(tensor)

        line = self._note(method.strip("_"), decides)
        is_first = line not in self._true_lines
        if method == "__bool__" and self._selects_all and is_first:
            self._true_lines.add(line)  # once: a loop may end at this value
            return True

        return old(tensor)

    def _note(self, name: str, decides: str) -> str:
        """Note an unknown value; return the line of the user's code."""
        line = find_calling_line()
        self.unknown[f"{name} at {line}" if line else name] = decides

        return line


def _is_small_integer(result: Any) -> bool:
    """Return whether an op's result is one tensor of a few integers in the card's memory."""
    return (
        isinstance(result, tf.Tensor)
        and result.dtype.is_integer
        and result.shape.num_elements() <= _FEW
        and "GPU" in result.backing_device
    )


def _is_on_host(value: Any) -> bool:
    """Return whether an op's input consists of integers that the host has."""
    if isinstance(value, tf.Tensor):
        return value.dtype.is_integer and "GPU" not in value.backing_device

    if isinstance(value, list | tuple):
        return all(map(_is_on_host, value))

    return isinstance(value, int | np.ndarray | np.integer)
