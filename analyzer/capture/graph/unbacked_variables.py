"""Variables and inputs that have a shape, can be read and assigned, and take no memory.

In the block of ``leave_out_values``, a variable of Keras 3 gets zeros without memory: a slice of one
buffer that is never written to, so that no page of it is backed. Its initializer does not run. An
assigned value is checked for its shape and dropped. Small variables are real: Python may read them (a
learning rate, a step counter).
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

from analyzer.capture import private_names as private
from analyzer.model.contract.fields import SMALL_ELEMENTS

_CPU_DEVICE: Final = "/job:localhost/replica:0/task:0/device:CPU:0"
_LARGE_BYTES: Final = 1 << 20
"""A given value of at least this size is dropped; a smaller one may be a lookup table."""
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``: the system reserves no memory for the mapping, so its size does not count."""
_UNBACKED: Final = (
    "_analyzer_unbacked"  # set on a variable without memory for its value
)
FROM_NUMPY: Final = "_analyzer_from_numpy"
"""Set on a tensor that was made from a NumPy array. It shares the array's memory if the address is a
multiple of 64 bytes; TensorFlow copies others (``TF_NewTensor`` in ``tf_tensor.cc``)."""


class Zeros:
    """Makes zeros without memory."""

    def __init__(self) -> None:
        self._bytes: Any = None

    def make_tensor(
        self, dtype: Any, shape: Sequence[int], least: int = _LARGE_BYTES
    ) -> Any:
        """Return zeros of this shape; without memory if they take at least ``least`` bytes."""
        size_bytes = math.prod(shape) * dtype.size
        # Bytes cannot be viewed as bool or string.
        if size_bytes < least or dtype in (tf.bool, tf.string):
            return tf.zeros(list(shape), dtype)
        if self._bytes is None or len(self._bytes) < size_bytes:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            # Addresses that get memory only when they are written.
            pages = mmap.mmap(-1, size_bytes, flags=flags)
            self._bytes = np.frombuffer(pages, dtype=np.uint8)

        # TensorFlow copies a slice that does not end at a multiple of 64 bytes
        # (``IsDim0SliceAligned`` in ``ops_util.h``), NumPy does not.
        flat = tf.experimental.dlpack.from_dlpack(self._bytes[:size_bytes].__dlpack__())
        if dtype.size > 1:
            flat = tf.reshape(flat, [-1, dtype.size])

        return tf.reshape(tf.bitcast(flat, dtype), list(shape))


_active: list[Zeros] = []  # of the blocks under way, the innermost last


@contextlib.contextmanager
def leave_out_values() -> Iterator[None]:
    """Make the variables and inputs in the block without memory."""
    zeros = Zeros()
    _active.append(zeros)
    try:
        with contextlib.ExitStack() as stack:
            _Patches(zeros, stack).apply()
            yield
    finally:
        _active.remove(zeros)


def make_unbacked_value(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return zeros without memory; None if values are real."""
    return _active[0].make_tensor(dtype, shape) if _active else None


@contextlib.contextmanager
def mark_numpy_tensors() -> Iterator[None]:
    """Mark the tensors that are made from NumPy arrays in the block with ``FROM_NUMPY``."""
    old = private.constant_op.convert_to_eager_tensor

    @functools.wraps(old)
    def convert(value: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = old(value, *args, **kwargs)
        if isinstance(value, np.ndarray):
            setattr(tensor, FROM_NUMPY, True)

        return tensor

    with patch.object(private.constant_op, "convert_to_eager_tensor", convert):
        yield


def build_slots(optimizer: Any, variables: list[Any]) -> None:
    """Make the slots of a Keras optimizer in a graph of their own, as a first tracing of the step does.

    In the step's graph, the scope of the slots would change the names of the update's ops.
    """
    scope = private.keras_backend.name_scope(optimizer.name, caller=optimizer)
    graph = private.FuncGraph("slots").as_default()
    with graph, scope, tf.variable_creator_scope(_create_from_constant):
        optimizer.build(variables)


def _create_from_constant(
    create: Callable[..., Any], *, initial_value: Any, **kwargs: Any
) -> Any:
    """Create a variable; one with a constant of the graph as its value (Nadam) gets a copy of it."""
    if tf.is_tensor(initial_value) and tf.is_symbolic_tensor(initial_value):
        initial_value = tf.get_static_value(initial_value)

    return create(initial_value=initial_value, **kwargs)


class _Patches:
    def __init__(self, zeros: Zeros, stack: contextlib.ExitStack) -> None:
        self._zeros = zeros
        self._stack = stack

    def apply(self) -> None:
        """Replace the methods."""
        self._wrap(
            private.KerasVariable, private.INITIALIZE_KERAS_VARIABLE, self._initialize
        )
        for owner in (private.KerasVariable, private.BaseResourceVariable):
            self._wrap(owner, "assign", self._assign)
            self._wrap(owner, "numpy", self._numpy)

        for optimizer in (
            keras.optimizers.Optimizer,
            keras.optimizers.LossScaleOptimizer,
        ):
            self._wrap(optimizer, "apply", self._build_and_apply)

    def _wrap(self, owner: Any, name: str, new: Callable[..., Any]) -> None:
        old = getattr(owner, name)

        @functools.wraps(old)
        def method(*args: Any, **kwargs: Any) -> Any:
            return new(old, *args, **kwargs)

        self._stack.enter_context(patch.object(owner, name, method))

    def _initialize(self, old: Any, variable: Any, initializer: Any) -> None:
        """Initialize a variable of Keras."""
        is_traced = not tf.executing_eagerly()
        shape = private.get_keras_shape(variable)
        dtype = tf.as_dtype(private.get_keras_dtype(variable))
        is_unbacked = _can_be_unbacked(shape, dtype)

        with tf.init_scope():
            if (is_unbacked or is_traced) and not tf.distribute.has_strategy():
                # Not through tf.function's creator, which would trace the step a second time.
                value = private.UninitializedVariable(
                    trainable=variable.trainable,
                    name=variable.name,
                    shape=shape,
                    dtype=dtype,
                )
                if not is_unbacked:
                    value.assign(tf.cast(initializer(shape, dtype=dtype), dtype))

                private.set_keras_value(variable, value)
            else:
                old(variable, initializer)

            if is_unbacked:
                value = private.get_keras_value(variable)
                for part in private.get_device_parts(value) or (value,):
                    self._drop_value(part)

                setattr(variable, _UNBACKED, True)

    def _build_and_apply(
        self, old: Any, optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not optimizer.built and not tf.executing_eagerly():
                build_slots(optimizer, trainable_variables)

        return old(optimizer, grads, trainable_variables)

    def _assign(
        self, old: Any, variable: Any, value: Any, *args: Any, **kwargs: Any
    ) -> Any:
        is_unbacked = getattr(variable, _UNBACKED, False) and tf.executing_eagerly()
        if is_unbacked and tuple(np.shape(value)) == tuple(variable.shape):
            return value if isinstance(variable, private.KerasVariable) else variable

        return old(variable, value, *args, **kwargs)

    def _numpy(self, old: Any, variable: Any) -> Any:
        if not getattr(variable, _UNBACKED, False):
            return old(variable)

        # Zeros of NumPy take memory only when they are written.
        value = private.get_keras_value(variable, variable)
        return np.zeros(tuple(value.shape), value.dtype.as_numpy_dtype)

    def _make_zeros(self, spec: Any) -> Any:
        with tf.init_scope(), tf.device(_CPU_DEVICE):
            return self._zeros.make_tensor(spec.dtype, tuple(spec.shape), least=0)

    def _drop_value(self, variable: Any) -> None:
        zeros = self._make_zeros(variable)
        with tf.init_scope(), tf.device(_CPU_DEVICE):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=zeros)

        setattr(variable, _UNBACKED, True)


def _can_be_unbacked(shape: Any, dtype: Any) -> bool:
    count = tf.TensorShape(shape).num_elements()
    return (
        count is not None and count > SMALL_ELEMENTS and bool(dtype.is_numpy_compatible)
    )
