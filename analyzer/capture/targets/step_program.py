"""A callable step."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture.private_names import get_function_options, is_jit_compiled
from analyzer.capture.run.wrapped_calls import Arguments
from analyzer.capture.targets.synthetic_inputs import Axes, fill_shapes, make_tensor
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
)
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import TargetError

# assumed: a square table with fewer rows is a batch, not the matrix of a graph
_MANY_NODES = 1000


@dataclass(kw_only=True)
class Program:
    """One training or inference step that can be called repeatedly."""

    call: Callable[[], Any]  # runs one step without arguments and returns its result
    # the tensors that the step is fed, and the NumPy arrays, which each call copies to tensors
    args: Arguments
    config: StepConfig
    # the ``tf.function`` behind ``call``; None if the step runs eagerly
    function: Any = None
    traced_args: Arguments = ()
    models: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    # choices for the user, one sentence each
    messages: list[str] = field(default_factory=list)
    # returns the call for another size of an open batch axis; None if the axis is not open
    resize: Callable[[int], Callable[[], Any]] | None = None

    def make_tensors(self) -> Arguments:
        """Return the step's inputs as tensors."""
        return tuple(map(tf.convert_to_tensor, self.args))


# Attributes of a step that may hold its model and optimizer.
_OWNERS = ("model", "models", "optimizer", "optimizers")


def is_tf_function(thing: Any) -> bool:
    """Say whether a thing can be called and traced."""
    return hasattr(thing, "get_concrete_function") and callable(thing)


def get_signature(function: Any) -> Any:
    """Return the specs of a ``tf.function``'s arguments; None if it has no input signature."""
    signature = getattr(function, "input_signature", None)
    if signature is None and hasattr(function, "structured_input_signature"):
        signature = function.structured_input_signature[0]

    return signature


def get_axes(spec: Any) -> Axes:
    """Return the axes of a ``tf.TensorSpec``."""
    if spec.shape.rank is None:
        return None

    return tuple(spec.shape.as_list())


def check_arguments(
    function: Any,
    args: Any,
    text: str,
    options: CaptureOptions,
) -> None:
    """Refuse options for a step that comes with arguments, unless its batch size is the given one."""
    form = TargetForm.STEP if is_tf_function(function) else TargetForm.EAGER_STEP
    if options.batch_size == find_batch_size(args):
        options = replace(options, batch_size=None)

    check_honoured(text, form, options)


def make_signature_program(
    function: Any,
    text: str,
    options: CaptureOptions,
) -> Program:
    """Return the step of a ``tf.function``, with arguments made from its input signature."""
    signature = get_signature(function)
    if signature is None:
        code = getattr(getattr(function, "python_function", None), "__code__", None)
        if code is not None and code.co_argcount == 0:
            return make_function_program(function, (), text, options)

        raise TargetError(
            f"{text} is a tf.function without an input signature.",
            "Give it input_signature=[tf.TensorSpec(...)], or return (tf_function, args).",
        )

    specs = tf.nest.flatten(signature)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            raise TargetError(
                f"{text} takes a {type(spec).__name__}, and analyze cannot create a value for it.",
                "Return (tf_function, args) with real arguments.",
            )

    axes = dict(
        zip(_name_inputs(function, signature), map(get_axes, specs), strict=True)
    )
    tensors = [
        make_tensor(shape, spec.dtype)
        for shape, spec in zip(fill_shapes(axes, options).values(), specs, strict=True)
    ]

    args = tuple(tf.nest.pack_sequence_as(signature, tensors))

    return make_function_program(function, args, text, options)


def make_function_program(
    function: Any,
    args: Arguments,
    text: str,
    options: CaptureOptions,
) -> Program:
    """Return the step of a function; its attributes may hold its model and optimizer."""
    function = _apply_jit(function, text, options.jit)
    owned = {name: tf.nest.flatten(getattr(function, name, None)) for name in _OWNERS}
    models = [one for one in owned["model"] + owned["models"] if one is not None]

    optimizers = owned["optimizer"] + owned["optimizers"]
    optimizers += [getattr(model, "optimizer", None) for model in models]
    optimizers = list({id(one): one for one in optimizers if one is not None}.values())

    return Program(
        call=lambda: function(*args),
        # A ragged or sparse tensor is fed as its component tensors.
        args=tuple(
            one
            for one in tf.nest.flatten(args, expand_composites=True)
            if tf.is_tensor(one) or isinstance(one, np.ndarray | np.generic)
        ),
        function=function if is_tf_function(function) else None,
        traced_args=args,
        models=models,
        optimizers=optimizers,
        config=StepConfig(
            # a model that is called has the attribute too, for its ``fit``
            jit=is_tf_function(function) and is_jit_compiled(function),
            batch_size=find_batch_size(args),
            dtype_policy=keras.config.dtype_policy().name,
        ),
    )


def _name_inputs(function: Any, signature: Any) -> list[str]:
    """Return a unique name for each tensor of a signature: its own, or its parameter's."""
    parameters: list[str] = []
    with suppress(ValueError, TypeError):
        parameters = list(inspect.signature(function.python_function).parameters)

    if parameters[:1] == ["self"]:
        del parameters[0]

    names: list[str] = []
    for index, specs in enumerate(signature):
        parameter = parameters[index] if index < len(parameters) else f"arg{index}"
        flat = tf.nest.flatten(specs)

        for number, spec in enumerate(flat):
            name = parameter if len(flat) == 1 else f"{parameter}_{number}"
            if spec.name and spec.name not in names:
                name = spec.name

            names.append(name)

    return names


def find_batch_size(args: Any) -> int | None:
    """Return the first axis that the tensors of a call share; None if it is unknown.

    Of a large graph, whose matrix pairs the rows of the other tensors, it is 0: they are no batch.
    """
    shapes = [
        tuple(one.shape or ())  # of an unknown rank: none
        for one in tf.nest.flatten(args)
        if tf.is_tensor(one) or isinstance(one, np.ndarray)
    ]
    tables = [one for one in shapes if len(one) > 1] or shapes
    lengths = {one[0] for one in tables if one}

    if len(lengths) != 1:
        return None

    length = lengths.pop()
    pairs = [one for one in tables if one == (length, length)]
    is_graph = length >= _MANY_NODES and 0 < len(pairs) < len(tables)

    return 0 if is_graph else length


def _apply_jit(function: Any, text: str, jit: bool | None) -> Any:
    """Return the function, rebuilt if ``jit`` differs from its own ``jit_compile``."""
    if jit is None or not is_tf_function(function) or is_jit_compiled(function) == jit:
        return function

    python_function = getattr(function, "python_function", None)
    if python_function is None:
        raise TargetError(
            f"{text} is already traced.",
            "Leave out --jit/--no-jit.",
        )

    rebuilt = tf.function(
        python_function,
        input_signature=function.input_signature,
        jit_compile=jit,
        **get_function_options(function),
    )

    vars(rebuilt).update(
        (name, vars(function)[name]) for name in _OWNERS if name in vars(function)
    )

    return rebuilt
