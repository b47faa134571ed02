"""Inputs and labels made from specs: right in dtype and shape, meaningless in value.

They are made by TensorFlow's own kernels: on a CPU a tensor made from a NumPy array may share the
array's memory, and would then be missing from the allocator's books.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from analyzer.capture.births import note_input
from analyzer.capture.spec import CaptureOptions
from analyzer.errors import TargetError

_SEED = (0, 0)


def tensor_for(shape: tuple[int | None, ...], dtype: Any, classes: int | None = None) -> tf.Tensor:
    """Return an eager tensor of this shape and dtype.

    Args:
        shape: Axes, all known.
        dtype: TensorFlow or Keras dtype.
        classes: Integers are drawn below this; None makes them all 0, which any embedding takes.
    """
    value = _value(tuple(int(axis or 1) for axis in shape), tf.as_dtype(dtype), classes)
    note_input(value)
    return value


def _value(axes: tuple[int, ...], dtype: Any, classes: int | None) -> tf.Tensor:
    if dtype == tf.string:
        return tf.fill(axes, "")
    if dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        return tf.random.stateless_uniform(axes, _SEED, dtype=dtype)
    if dtype == tf.int32 and classes:
        with tf.device("CPU:0"):  # where a data set's are, and where a step takes them
            return tf.random.stateless_uniform(axes, _SEED, maxval=classes, dtype=dtype)
    if dtype == tf.int64 and classes:
        return tf.random.stateless_uniform(axes, _SEED, maxval=classes, dtype=dtype)
    return tf.zeros(axes, dtype=dtype)


def fill_axes(
    name: str,
    axes: tuple[int | None, ...] | None,
    options: CaptureOptions,
    *,
    only: bool,
    has_batch: bool = True,
) -> tuple[int, ...]:
    """Return ``axes`` with the unknown ones filled from the batch size and ``--shape``.

    Args:
        name: The input's name.
        axes: Its axes, None for an unknown one; None where not even their number is known.
        options: Batch size and shapes by name.
        only: Whether it is the only input, which an unnamed ``--shape`` speaks of.
        has_batch: Whether the first axis is the batch.

    Raises:
        TargetError: an axis is unknown and nothing fills it.
    """
    given = options.shapes.get(name, options.shapes.get("") if only else None)
    if axes is None:
        if given is None:
            raise TargetError(
                f"The input {name!r} has no shape.", hint=f"Give it: --shape {name}=224,224,3."
            )
        return (options.batch_size, *given) if has_batch else given
    rest = axes[1:] if has_batch and axes else axes
    if given is not None:
        if len(given) != len(rest) or any(
            axis is not None and axis != wanted for axis, wanted in zip(rest, given, strict=True)
        ):
            raise TargetError(
                f"--shape {name}={','.join(map(str, given))} does not fit the input's axes "
                f"{_show(rest)}.",
                hint="Give every axis but the batch.",
            )
        rest = given
    if any(axis is None for axis in rest):
        raise TargetError(
            f"The input {name!r} leaves axes open: {_show(rest)}.",
            hint=f"Fill them: --shape {name}={_show(tuple(a or 128 for a in rest))}.",
        )
    filled = tuple(int(axis) for axis in rest if axis is not None)
    if not (has_batch and axes):
        return filled
    return (int(axes[0]) if axes[0] is not None else options.batch_size, *filled)


def _show(axes: tuple[int | None, ...]) -> str:
    return ",".join("?" if axis is None else str(axis) for axis in axes)
