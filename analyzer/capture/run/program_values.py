"""Values that eager ops and a program's own functions lack on a simulated card.

No kernel of the card computes. An op whose result has a size that depends on values also runs on the
host: with true inputs if they lie there, otherwise with inputs that select everything or nothing.
Functions that the program calls are traced as a step is (``true_values.py``).
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.capture.run.host_values import (
    ASSIGNMENTS,
    IN_HOST_MEMORY,
    SIZED,
    HostValues,
    link_gradient,
    select_all_or_none,
)
from analyzer.capture.run.step_variables import find_address
from analyzer.capture.run.true_values import give_true_values
from analyzer.capture.run.wrapped_calls import Arguments, wrap_calls
from analyzer.capture.targets.host_setup import (
    HOST,
    SetupValues,
    find_original,
    keep_value,
    make_host_variable,
    read_as_array,
)
from analyzer.capture.watch.user_lines import find_calling_line, is_for_logs
from analyzer.simulated_card.core_calls import write_to_card

# Elements up to which integers and truths keep their values on the host.
_MOST_ELEMENTS = 1 << 22

# Elements up to which the card itself gets the value, as a shape needs it.
_FEW = 64
_WITHOUT_VALUES = (tf.resource, tf.variant)


# Attribute of a function that a program calls: its arguments' values, as ``HostValues.slots``.
_SLOTS = "_analyzer_slots"

# Op types whose kernels for a card run on the host
_RUN_ON_HOST = ("OptionalHasValue", "VarIsInitializedOp")


# Runs an op with these inputs.
_Run: TypeAlias = Callable[[Sequence[Any]], Any]


class ProgramValues:
    """Gives ops of an eager step or of a script their sizes, and names unknown values."""

    def __init__(self, setup: SetupValues | None = None) -> None:
        self._functions = HostValues(setup or SetupValues(), (), is_program=True)

        # Op and its line -> what its value decides
        self.unknown = self._functions.unknown
        self._selects_all = False
        self._true_lines: set[str] = set()  # truths that were taken for true
        self._is_running = False  # an op of ours
        self.last_read = ""  # the line that read the last unknown value as an array

    def assign(self, selects_all: bool) -> None:
        """Set whether unknown conditions are taken to be true."""
        self._selects_all = selects_all
        self._true_lines.clear()
        if self._functions.assumed is not None:
            self._functions.assumed.assign(selects_all)

    @contextmanager
    def give(self) -> Iterator[None]:
        """Give eager ops in the block their sizes."""
        with ExitStack() as stack:
            for owner, name, call in (
                (private.pywrap_tfe, "TFE_Py_FastPathExecute", self._execute_quickly),
                (private.pywrap_tfe, "TFE_Py_Execute", self._execute_converted),
                (private.Function, "__call__", self.call_function),
                (private.constant_op, "convert_to_eager_tensor", self._convert),
                (private.EagerTensorBase, "_numpy", self._read_array),
                (np, "array", read_as_array),
                (np, "asarray", read_as_array),
            ):
                stack.enter_context(wrap_calls(owner, name, call))

            yield

    def call_function(
        self, call: Callable[..., Any], function: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a ``tf.function``; it is traced with true values where they decide."""
        is_inner = not tf.executing_eagerly() or self._functions.depth
        if is_inner or private.is_composite_op(function):
            return call(function, *args, **kwargs)

        if private.is_jit_compiled(function):
            for variable in tuple(self._functions.followers):  # XLA assigns to any
                self._functions.forget_follower(variable)

            results = call(function, *args, **kwargs)
            # XLA reads the size of an empty result.
            is_read = any(
                isinstance(one, tf.Tensor)
                and one.shape.num_elements() == 0
                and "GPU" in one.backing_device
                for one in tf.nest.flatten(results)
            )

            if is_read:
                self._note(function.python_function.__name__, "a size")

            return results

        values = self._functions
        values.slots = vars(function).setdefault(_SLOTS, {})
        values.arguments = () if _list_tensors(kwargs) else _list_tensors(args)

        try:
            self._fill_slots(function.python_function.__name__)
            with give_true_values(values):
                return call(function, *args, **kwargs)
        finally:
            values.arguments = ()

    def _fill_slots(self, function: str) -> None:
        """Give the values of a call's arguments to a function that was traced with others."""
        for place, slot in self._functions.slots.items():
            given = self._functions.arguments[place:][:1]
            value = _find_host_value(given[0]) if given else None

            if value is None:
                self._note(function, "a size")
            else:
                with self._running_own_ops(), tf.device(HOST):
                    slot.assign(value)

    # Eager ops

    def _execute_quickly(
        self, old: Any, context: Any, op_type: str, name: Any, *args: Any
    ) -> Any:
        """Run an eager op with arguments of any kind, which are inputs and then attributes."""
        count = private.count_inputs(op_type)
        inputs, attributes = args[:count], args[count:]

        def run(inputs: Sequence[Any]) -> Any:
            return old(context, op_type, name, *inputs, *attributes)

        return self._execute(op_type, run, inputs, attributes)

    def _execute_converted(
        self,
        old: Any,
        context: Any,
        device: str,
        op_type: str,
        inputs: Sequence[Any],
        attributes: Arguments,
        *rest: Any,
    ) -> Any:
        """Run an eager op, or a function, whose inputs are tensors already."""
        if not private.is_op(op_type):
            return old(context, device, op_type, inputs, attributes, *rest)

        def run(inputs: Sequence[Any]) -> Any:
            place = private.context.context().device_name
            return old(context, place, op_type, list(inputs), attributes, *rest)

        return self._execute(op_type, run, inputs, attributes)

    def _execute(
        self,
        op_type: str,
        run: _Run,
        inputs: Sequence[Any],
        attributes: Arguments,
    ) -> Any:
        """Run an eager op; if its values decide a size, also on the host."""
        is_on_host = "CPU" in private.context.context().device_name
        if self._is_running or is_on_host:
            if op_type in ASSIGNMENTS and not self._is_running:
                self._functions.forget_follower(id(inputs[0]))

            return run(inputs)

        if op_type not in SIZED:
            return self._run_with_values(op_type, run, inputs)

        with self._running_own_ops():
            inputs = [tf.convert_to_tensor(one) for one in inputs]
            results = self._find_results(op_type, run, inputs, attributes)

            # The kernel, too, allocates its results before it frees its temporaries.
            own = run(inputs)

        if results is None:
            return own

        tf.nest.map_structure(link_gradient, results, own)

        return results

    def _run_with_values(self, op_type: str, run: _Run, inputs: Sequence[Any]) -> Any:
        """Run an op; integers and few floats keep their values if the host has all inputs.

        A vocabulary's indices, for example, lie on the card before a table on the host reads them.
        """
        inputs = [self._read_variable(one) for one in inputs]
        known = [_find_host_value(one) for one in inputs]
        if op_type in ASSIGNMENTS or op_type == "ReadVariableOp":
            known[0] = self._find_follower(inputs[0], known[1:])

        # No card can hold strings.
        has_text = any(getattr(one, "dtype", None) == tf.string for one in inputs)

        if private.is_host_only(op_type) or has_text:
            given = [
                own if host is None else host
                for host, own in zip(known, inputs, strict=True)
            ]
            with tf.device(HOST):  # arrays would be copied to the card and back
                own = run(given)
        else:
            own = run(inputs)

        if _is_unknown(inputs) and op_type not in IN_HOST_MEMORY:
            for one in tf.nest.flatten(own):
                if isinstance(one, tf.Tensor):
                    keep_value(one, None)

            return own

        if op_type in _RUN_ON_HOST:
            return tf.nest.map_structure(
                partial(private.copy_to_device, device=HOST), own
            )

        is_known = bool(inputs) and all(one is not None for one in known)
        results = tf.nest.flatten(own)
        is_wanted = op_type in ASSIGNMENTS or any(map(_lacks_value, results))

        if not is_known or not is_wanted:
            return own

        with self._running_own_ops(), private.stop_recording(), tf.device(HOST):
            return tf.nest.map_structure(self._give_value, own, run(known))

    def _read_variable(self, value: Any) -> Any:
        """Return the tensor of a small integer variable; any other input itself."""
        is_variable = isinstance(value, private.ResourceVariable)
        if is_variable and id(value.handle) in self._functions.followers:
            return value.value()

        return value

    def _find_follower(self, handle: Any, assigned: Sequence[Any]) -> Any:
        """Return the handle of the variable on the host that has the value of a small integer one.

        ``assigned``: the value that an op assigns, if it is one that does; None if it is unknown.
        """
        functions = self._functions
        if assigned and assigned[0] is None:
            functions.forget_follower(id(handle))
        elif assigned and id(handle) not in functions.followers:
            with self._running_own_ops(), tf.device(HOST):
                value = tf.convert_to_tensor(assigned[0])
                is_few = value.dtype.is_integer and value.shape.num_elements() <= _FEW
                if not is_few or "GPU" not in handle.device:
                    return None

                follower = make_host_variable(value)

            functions.followers[id(handle)] = follower
            functions.followed.add(id(handle))
            weakref.finalize(handle, functions.forget_follower, id(handle))

        return getattr(functions.followers.get(id(handle)), "handle", None)

    def _give_value(self, own: Any, host: Any) -> Any:
        """Return a result of the card that has the value of the host's."""
        if not _lacks_value(own):
            return own

        if own.shape.num_elements() <= _FEW:
            address = find_address(own)
            if address is not None:
                write_to_card(address, host.numpy().tobytes())

        return keep_value(own, host)

    def _convert(self, old: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor of a Python or NumPy value, which the host keeps."""
        tensor = old(*args, **kwargs)
        if not self._is_running and _lacks_value(tensor):
            with tf.device(HOST):
                return keep_value(tensor, old(*args, **kwargs))

        return tensor

    @contextmanager
    def _running_own_ops(self) -> Iterator[None]:
        """Leave the ops of the block, which are ours, as they are."""
        self._is_running = True

        try:
            yield
        finally:
            self._is_running = False

    def _find_results(
        self,
        op_type: str,
        run: _Run,
        inputs: list[Any],
        attributes: Arguments,
    ) -> Any:
        """Return results of true or assumed sizes on the card; None if they are too large."""
        given = list(inputs)
        is_true = True

        with private.stop_recording(), tf.device(HOST):
            for place in SIZED[op_type]:
                if place >= len(inputs):
                    continue

                host = _find_host_value(inputs[place])
                if host is None:
                    is_true = False
                    self._note(op_type, "a size")
                    host = self._assume(op_type, inputs[place], place, attributes)

                if host is None:
                    return None

                given[place] = host

            results = run(given)
            copies = tf.nest.map_structure(self._functions.setup.copy, results)

        if is_true:
            tf.nest.map_structure(keep_value, copies, results)

        return copies

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

        return select_all_or_none(
            op_type,
            tensor,
            place,
            tf.constant(tensor.shape.as_list(), tf.int32),
            tf.constant(self._selects_all),
            parts,
        )

    def _read_array(self, old: Any, tensor: Any) -> Any:
        """Return a tensor's value as NumPy has it; the host's if it is known, else name the read.

        All reads of Python end here: ``if``, ``float``, ``int``, ``format``, ``np.asarray``, ``item``.
        Truths are true if unknown conditions are taken to be true, all other values are 0.
        """
        original = find_original(tensor)
        if original is not None or self._is_running:
            return old(tensor if original is None else original)

        line = self.last_read = find_calling_line()
        if not is_for_logs():
            self._note("value", "read in Python")

        is_true = self._selects_all and line not in self._true_lines
        if tensor.dtype != tf.bool or not is_true:
            return old(tensor)

        self._true_lines.add(line)  # once: a loop may end at this value
        return np.ones(tensor.shape, bool)

    def _note(self, name: str, decides: str) -> None:
        """Note an unknown value with the line of the user's code."""
        line = find_calling_line()
        self.unknown[f"{name} at {line}" if line else name] = decides


def _list_tensors(structure: Any) -> list[Any]:
    return [
        one
        for one in tf.nest.flatten(structure, expand_composites=True)
        if hasattr(one, "dtype")
    ]


def _lacks_value(result: Any) -> bool:
    """Return whether an op's result lacks a value that the host may keep.

    Long tensors of floats are data, whose values decide nothing.
    """
    if not isinstance(result, tf.Tensor) or result.dtype in _WITHOUT_VALUES:
        return False

    is_whole = result.dtype.is_integer or result.dtype.is_bool
    most = _MOST_ELEMENTS if is_whole else _FEW

    return (
        result.shape.num_elements() <= most
        and "GPU" in result.backing_device
        and find_original(result) is None
    )


def _is_unknown(structure: Any) -> bool:
    """Return whether an op's inputs have a tensor whose value a simulated card lacks."""
    return any(
        isinstance(one, tf.Tensor)
        and one.dtype not in _WITHOUT_VALUES
        and find_original(one) is None
        for one in tf.nest.flatten(structure)
    )


def _find_host_value(value: Any) -> Any:
    """Return an op's input as the host has it; None if its value is unknown."""
    if isinstance(value, tf.Tensor):
        return None if value.dtype in _WITHOUT_VALUES else find_original(value)

    if isinstance(value, list | tuple):
        parts = [_find_host_value(one) for one in value]
        return None if any(one is None for one in parts) else parts

    return value if isinstance(value, int | float | np.ndarray | np.number) else None
