"""Variables and inputs that have a shape, can be read and assigned, and take no memory.

In the block of ``leave_out_values``, a variable of Keras 3 gets zeros without memory: pages that are
never written to, so that none is backed. Its initializer does not run. An assigned value is checked for
its shape and dropped. Small variables are real: Python may read them (a learning rate, a step counter).
"""

import math
import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture.private_names import (
    INITIALIZE_KERAS_VARIABLE,
    BaseResourceVariable,
    KerasVariable,
    UninitializedVariable,
    get_device_parts,
    get_keras_dtype,
    get_keras_shape,
    get_keras_value,
    set_keras_value,
)
from analyzer.capture.run.wrapped_calls import wrap_calls
from analyzer.model.contract.fields import SMALL_ELEMENTS

_CPU_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"

# A given value of at least this size is dropped; a smaller one may be a lookup table.
_LARGE_BYTES = 1 << 20

# ``MAP_NORESERVE``: the system reserves no memory for the mapping, so its size does not count.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0

# Attribute of a variable without memory for its value.
_UNBACKED = "_analyzer_unbacked"

_blocks: list[object] = []  # of ``leave_out_values`` under way


@contextmanager
def leave_out_values() -> Iterator[None]:
    """Make the variables and inputs in the block without memory."""
    initialize = INITIALIZE_KERAS_VARIABLE
    with ExitStack() as stack:
        stack.enter_context(wrap_calls(KerasVariable, initialize, _initialize))
        for owner in (KerasVariable, BaseResourceVariable):
            stack.enter_context(wrap_calls(owner, "assign", _assign))
            stack.enter_context(wrap_calls(owner, "numpy", _read_zeros))

        optimizers = keras.optimizers
        for owner in (optimizers.Optimizer, optimizers.LossScaleOptimizer):
            stack.enter_context(wrap_calls(owner, "apply", _build_and_apply))

        _blocks.append(stack)
        stack.callback(_blocks.pop)
        yield


def make_unbacked_value(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros without memory; None if values are real."""
    return _make_zeros(dtype, shape) if _blocks else None


def _make_zeros(dtype: Any, shape: Sequence[int], least: int = _LARGE_BYTES) -> Any:
    """Return zeros of this shape; without memory if they take at least ``least`` bytes."""
    size_bytes = math.prod(shape) * dtype.size

    # Bytes cannot be viewed as bool or string.
    if size_bytes < least or dtype in (tf.bool, tf.string):
        return tf.zeros(list(shape), dtype)

    # Addresses that get memory only when they are written; NumPy's own zeros are not aligned.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    pages = np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), dtype=np.uint8)
    flat = tf.experimental.dlpack.from_dlpack(pages.__dlpack__())

    if dtype.size > 1:
        flat = tf.reshape(flat, [-1, dtype.size])

    return tf.reshape(tf.bitcast(flat, dtype), list(shape))


def _initialize(old: Any, variable: Any, initializer: Any) -> None:
    """Initialize a variable of Keras."""
    is_traced = not tf.executing_eagerly()
    shape = get_keras_shape(variable)
    dtype = tf.as_dtype(get_keras_dtype(variable))
    is_unbacked = _can_be_unbacked(shape, dtype)

    with tf.init_scope():
        if (is_unbacked or is_traced) and not tf.distribute.has_strategy():
            # Not through tf.function's creator, which would trace the step a second time.
            value = UninitializedVariable(
                trainable=variable.trainable,
                name=variable.name,
                shape=shape,
                dtype=dtype,
            )

            if not is_unbacked:
                value.assign(tf.cast(initializer(shape, dtype=dtype), dtype))

            set_keras_value(variable, value)
        else:
            old(variable, initializer)

        if is_unbacked:
            value = get_keras_value(variable)
            for part in get_device_parts(value):
                _drop_value(part)

            setattr(variable, _UNBACKED, True)


def _can_be_unbacked(shape: Any, dtype: Any) -> bool:
    count = tf.TensorShape(shape).num_elements()
    is_large = count is not None and count > SMALL_ELEMENTS

    return is_large and bool(dtype.is_numpy_compatible)


def _drop_value(variable: Any) -> None:
    with tf.init_scope(), tf.device(_CPU_DEVICE):
        zeros = _make_zeros(variable.dtype, tuple(variable.shape), least=0)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zeros)

    setattr(variable, _UNBACKED, True)


def _build_and_apply(
    old: Any,
    optimizer: Any,
    grads: Any,
    trainable_variables: Any = None,
) -> Any:
    """Make the slots outside the step's graph, where they change no name of an op."""
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
        if not optimizer.built:
            with tf.init_scope():
                optimizer.build(trainable_variables)

    return old(optimizer, grads, trainable_variables)


def _assign(old: Any, variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    is_unbacked = getattr(variable, _UNBACKED, False) and tf.executing_eagerly()
    if is_unbacked and tuple(np.shape(value)) == tuple(variable.shape):
        return value if isinstance(variable, KerasVariable) else variable

    return old(variable, value, *args, **kwargs)


def _read_zeros(old: Any, variable: Any) -> Any:
    if not getattr(variable, _UNBACKED, False):
        return old(variable)

    # Zeros of NumPy take memory only when they are written.
    value = get_keras_value(variable, variable)
    return np.zeros(tuple(value.shape), value.dtype.as_numpy_dtype)
