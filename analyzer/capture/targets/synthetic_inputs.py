"""Inputs and labels made from specs: right in dtype and shape, meaningless in value.

They are made by TensorFlow's own kernels: on a CPU a tensor made from a NumPy array may share the
array's memory, and would then be missing from the allocator's books. An estimate runs nothing, so that
what it is fed needs no bytes: it gets specs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.initializers.variable_births import make_unbacked_value, record_input
from analyzer.capture.targets.honoured_options import make_fixed_batch_error
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import TargetError
from analyzer.model.units import format_bytes

Axes = tuple[int | None, ...] | None

_SEED = (0, 0)
_MOST_BYTES: Final = 1 << 46
"""Half of the addresses that a process has on x86-64 and on most 64-bit ARM: no mapping is larger."""
_SPARSE_SHARE: Final = 10
"""One in so many places of a sparse input holds a value: nothing says how many do."""


def make_tensor(shape: tuple[int | None, ...], dtype: Any, classes: int | None = None) -> tf.Tensor:
    """Return an eager tensor of this shape and dtype.

    Args:
        shape: Axes, all known.
        dtype: TensorFlow or Keras dtype.
        classes: Integers are drawn below this; None makes them all 0, which any embedding takes.

    Raises:
        TargetError: it has more elements than TensorFlow can count, or this machine memory for them.
    """
    _check_size(shape, tf.as_dtype(dtype))
    value = _value(tuple(int(axis or 1) for axis in shape), tf.as_dtype(dtype), classes)
    record_input(value)
    return value


def _check_size(shape: tuple[int | None, ...], dtype: Any) -> None:
    """Refuse what cannot be made here: a real run needs the memory, an estimate only the numbers."""
    size_bytes = math.prod(int(axis or 1) for axis in shape) * dtype.size
    most_bytes = _MOST_BYTES if make_unbacked_value(tf.uint8, (1,)) is not None else _memory_bytes()
    if size_bytes > most_bytes:
        raise TargetError(
            f"An input or label of shape {_show(shape)} takes {format_bytes(size_bytes)}, more than "
            f"the {format_bytes(most_bytes)} that can be made here.",
            hint="Try a smaller --batch-size or --shape.",
        )


def _memory_bytes() -> int:
    """Return this machine's memory, or no limit where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MOST_BYTES


def make_tensor_like(spec: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor of this shape with a spec's dtype, sparse or ragged where the spec is.

    A ragged one has rows of full length; a sparse one holds a value in one of ten places.
    """
    whole = make_tensor(shape, spec.dtype)
    if getattr(spec, "ragged", False) and len(shape) > 1:
        return tf.RaggedTensor.from_tensor(whole)
    if not getattr(spec, "sparse", False):
        return whole
    count = max(math.prod(shape) // _SPARSE_SHARE, 1)
    places = tf.range(count, dtype=tf.int64) * (math.prod(shape) // count)
    indices = tf.transpose(tf.unravel_index(places, tf.constant(shape, tf.int64)))
    return tf.SparseTensor(indices, tf.gather_nd(whole, indices), shape)


def describe_values(name: str, tensor: Any) -> Iterator[str]:
    """Yield a sentence where more than a shape was made up."""
    if isinstance(tensor, tf.RaggedTensor):
        yield f"The input {name!r} is ragged: every row was made as long as the longest."
    if isinstance(tensor, tf.SparseTensor):
        yield (
            f"The input {name!r} is sparse: one in {_SPARSE_SHARE} of its places was given a value."
        )


def check_names(names: Sequence[str], options: CaptureOptions) -> None:
    """Refuse a ``--shape`` that speaks of none of the inputs.

    Raises:
        TargetError: a name is no input's, or there is none and several inputs.
    """
    unknown = sorted(name for name in options.shapes if name and name not in names)
    inputs = ", ".join(sorted(names))
    if unknown:
        raise TargetError(f"There is no input {unknown[0]!r}.", hint=f"Its inputs: {inputs}.")
    if "" in options.shapes and len(names) != 1:
        raise TargetError(
            f"--shape names none of the {len(names)} inputs.",
            hint=f"Write it as --shape NAME={','.join(map(str, options.shapes['']))}; the inputs: "
            f"{inputs}.",
        )


def check_batch(specs: Mapping[str, Axes], options: CaptureOptions) -> None:
    """Refuse a batch size where no input's first axis is open, unless it is the fixed one.

    Args:
        specs: Axes of each input by its name.
        options: The batch size asked for.

    Raises:
        InputError: it cannot be honoured.
    """
    asked = options.batch_size
    fixed = {name: axes[0] for name, axes in specs.items() if axes and axes[0] is not None}
    if asked is None or _opens_first(specs) or asked in fixed.values():
        return
    if find_batch_axes(specs, options):
        return
    name = next(iter(fixed), next(iter(specs), ""))
    raise make_fixed_batch_error(name, fixed.get(name), asked)


def find_batch_axes(specs: Mapping[str, Axes], options: CaptureOptions) -> dict[str, int]:
    """Return, by input, the axis that is the batch where it is not the first; none where it is.

    Where a batch size is asked for and no input leaves its first axis open, the batch is the only axis
    that one leaves open: the second of what comes time step by time step.

    Args:
        specs: Axes of each input by its name.
        options: The batch size asked for, and shapes by name.
    """
    if options.batch_size is None or options.shapes or _opens_first(specs):
        return {}
    return {
        name: axes.index(None)
        for name, axes in specs.items()
        if axes is not None and list(axes).count(None) == 1
    }


def fill_batch_axis(name: str, axes: Axes, elsewhere: Mapping[str, int], size: int) -> Axes:
    """Return an input's axes with the batch in its place where that is not the first.

    Args:
        name: The input.
        axes: Its axes.
        elsewhere: What ``find_batch_axes`` found.
        size: The batch size.
    """
    at = elsewhere.get(name)
    if at is None or axes is None:
        return axes
    return (*axes[:at], size, *axes[at + 1 :])


def describe_batch_axes(elsewhere: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence on which axes are the batch where they are not the first."""
    if elsewhere:
        told = ", ".join(f"axis {at} of {name!r}" for name, at in elsewhere.items())
        yield f"The batch is {told}, counted from 0: the only axis that is open."


def describe_shared_batch(names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence where several inputs' first axes are taken as one batch.

    They may be counts of different things.

    Args:
        names: The inputs whose first axis is open.
    """
    if len(names) > 1:
        told = ", ".join(map(repr, names))
        yield (
            f"The first axes of {told} are taken as one batch; where one is not, write its size in the "
            "signature."
        )


def _opens_first(specs: Mapping[str, Axes]) -> bool:
    return any(axes is None or (axes and axes[0] is None) for axes in specs.values())


def _value(axes: tuple[int, ...], dtype: Any, classes: int | None) -> tf.Tensor:
    if dtype == tf.string:
        return tf.fill(axes, "")
    if dtype == tf.bool and axes:  # a mask: nothing is masked out, which takes the most
        return tf.fill(axes, True)
    nothing_runs = make_unbacked_value(dtype, axes)
    if nothing_runs is not None:
        return nothing_runs
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
    """Return axes with the unknown ones filled from the batch size and ``--shape``.

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
        return (options.open_batch_size, *given) if has_batch else given
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
    return (int(axes[0]) if axes[0] is not None else options.open_batch_size, *filled)


def _show(axes: tuple[int | None, ...]) -> str:
    return ",".join("?" if axis is None else str(axis) for axis in axes)
