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


# Attribute of a tensor of the card: the same tensor on the host, which has its value.
_HOST_VALUE = "_analyzer_host_value"
_MOST_ELEMENTS = 1 << 22  # of such a tensor

# Elements up to which the card itself gets the value, as a shape needs it.
_FEW = 64
_WITHOUT_VALUES = (tf.resource, tf.variant)


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
            convert = private.constant_op, "convert_to_eager_tensor", self._convert
            stack.enter_context(wrap_calls(*convert))
            stack.enter_context(
                wrap_calls(private.EagerTensorBase, "_numpy", _read_array)
            )

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
            count = private.count_inputs(op_type)
            run = functools.partial(old, context, op_type)
            return self._run_with_values(run, op_type, name, args[:count], args[count:])

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

    def _run_with_values(
        self,
        run: Callable[..., Any],
        op_type: str,
        name: Any,
        inputs: Arguments,
        attributes: Arguments,
    ) -> Any:
        """Run an op; an integer of the card keeps its value if the host has all inputs.

        A vocabulary's indices, for example, lie on the card before a table on the host reads them.
        """
        known = [_find_host_value(one) for one in inputs]

        if private.is_host_only(op_type) or any(map(_is_text, inputs)):
            pairs = zip(known, inputs, strict=True)
            given = [own if host is None else host for host, own in pairs]
            with tf.device(HOST):  # arrays would be copied to the card and back
                return run(name, *given, *attributes)

        own = run(name, *inputs, *attributes)
        if op_type in _RUN_ON_HOST:
            return private.copy_to_device(own, HOST)
        if not inputs or not _lacks_value(own) or any(one is None for one in known):
            return own

        with self._running_own_ops(), private.stop_recording(), tf.device(HOST):
            host = run(None, *known, *attributes)

        if own.shape.num_elements() <= _FEW:
            own = self._functions.setup.copy(host)

        setattr(own, _HOST_VALUE, host)

        return own

    def _convert(self, old: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor of a Python or NumPy value, which the host keeps."""
        tensor = old(*args, **kwargs)
        if not self._is_running and _lacks_value(tensor):
            with tf.device(HOST):
                setattr(tensor, _HOST_VALUE, old(*args, **kwargs))

        return tensor

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
        if self._is_running or _find_host_value(tensor) is not None:
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


def _lacks_value(result: Any) -> bool:
    """Return whether an op's result is one tensor of integers or truths without a value."""
    return (
        isinstance(result, tf.Tensor)
        and (result.dtype.is_integer or result.dtype.is_bool)
        and result.shape.num_elements() <= _MOST_ELEMENTS
        and "GPU" in result.backing_device
        and not hasattr(result, _HOST_VALUE)
    )


def _is_text(value: Any) -> bool:
    """Return whether an op's input is a tensor of strings, which no card can hold."""
    return isinstance(value, tf.Tensor) and value.dtype == tf.string


def _find_host_value(value: Any) -> Any:
    """Return an op's input as the host has it; None if its value is unknown."""
    if isinstance(value, tf.Tensor):
        if "GPU" in value.backing_device:
            return getattr(value, _HOST_VALUE, None)

        return None if value.dtype in _WITHOUT_VALUES else value

    if isinstance(value, list | tuple):
        parts = [_find_host_value(one) for one in value]
        return None if any(one is None for one in parts) else parts

    return value if isinstance(value, int | np.ndarray | np.integer) else None


def _read_array(old: Any, tensor: Any) -> Any:
    """Return a tensor's value as NumPy has it; the host's if it is known."""
    return old(getattr(tensor, _HOST_VALUE, tensor))
