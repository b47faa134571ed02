"""Inputs and labels made from specs: right in dtype and shape, arbitrary in value.

TensorFlow's kernels make them: on a CPU, a tensor made from a NumPy array may share the array's memory
and would be missing from the allocator's statistics. In an estimate they take no memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from analyzer.capture.graph.unbacked_variables import make_unbacked_value
from analyzer.capture.private_names import get_build_shapes, get_input_specs, get_layers
from analyzer.model.contract.child_messages import CaptureOptions, Shapes
from analyzer.model.errors import FailureKind, InputError, TargetError
from analyzer.model.machine import read_memory_bytes
from analyzer.model.units import format_bytes

# Sizes of the axes of an input; None for an open axis, or for an unknown number of axes.
Axes: TypeAlias = tuple[int | None, ...] | None
_SEED = (0, 0)
_RANDOM_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# Half of a process' addresses on x86-64 and most 64-bit ARM: no mapping is larger.
_ADDRESS_SPACE_BYTES = 1 << 46
_MOST_BATCHES = 1 << 62
_USUAL_SIZE = 128  # of an open axis, in a hint
_OPEN_TOKENS = 3  # generated after a prompt

# Bytes of the longest copy that a simulated card does not discard (``copy_most`` in ``cards.c``).
_LONGEST_COPY = 4096


@dataclass(frozen=True)
class BatchPart:
    """One input, label or weight of a synthetic batch.

    Integers are drawn below ``classes``; None makes them 0, which any embedding accepts.
    """

    shape: tuple[int, ...]
    dtype: Any
    classes: int | None = None
    is_open: bool = False  # whether the graph does not know the size of the first axis

    def resize(self, size: int) -> BatchPart:
        """Return the part with an open first axis of another size; TargetError if it is too large."""
        shape = (size, *self.shape[1:])
        _check_size(shape, self.dtype)

        return replace(self, shape=shape, is_open=True)

    def draw(self, number: Any, index: int = 0) -> tf.Tensor:
        """Return the value in batch ``number``; ``index`` is another number for each part.

        It depends on ``number``: Grappler would fold a constant that is never freed. It would also make
        one op of equal ops (``DedupComputations`` in ``arithmetic_optimizer.cc``), so that equal parts
        share a buffer.
        """
        value = self._draw(number, index)
        if self.is_open:
            axes = (None, *self.shape[1:])
            return tf.compat.v1.placeholder_with_default(value, axes)

        return value

    def _draw(self, number: Any, index: int) -> tf.Tensor:
        seed = tf.stack([tf.zeros_like(number) + index, number])
        shape = self.shape
        dtype = self.dtype
        is_float = dtype in _RANDOM_FLOATS
        is_long = is_float and math.prod(shape) * dtype.size > _LONGEST_COPY

        if is_long and "SIMULATED_CARDS" in os.environ:  # drawing takes seconds
            return tf.raw_ops.Empty(shape=shape, dtype=dtype)

        if is_float or (self.classes and dtype in (tf.int32, tf.int64)):
            most = None if is_float else self.classes
            return tf.random.stateless_uniform(shape, seed, maxval=most, dtype=dtype)

        if dtype == tf.string:
            return tf.fill(shape, "")

        # With nothing masked out, the step takes the most memory; a switch stays off.
        is_mask = dtype == tf.bool and bool(shape)
        value = (number >= -index) == is_mask

        return tf.fill(shape, tf.cast(value, dtype))


def make_part(
    shape: Sequence[int],
    dtype: Any,
    classes: int | None = None,
) -> BatchPart:
    """Return a part of a batch; TargetError if it is too large."""
    part = BatchPart(tuple(shape), tf.as_dtype(dtype), classes)
    _check_size(part.shape, part.dtype)

    return part


def open_batch(model: Any, data: Any, batch_size: int | None) -> Any:
    """Return the data with an open batch axis; None if some axis is fixed or no batch axis."""
    inputs = tf.nest.flatten(get_input_specs(model))
    parts = [part for part in tf.nest.flatten(data) if part is not None]
    is_fixed = any(
        one is not None and (not one.shape or one.shape[0]) for one in inputs
    )

    if is_fixed or any(part.shape[:1] != (batch_size,) for part in parts):
        return None

    return resize(data, batch_size)


def resize(data: Any, size: Any) -> Any:
    """Return the data at another size of its open batch axis; TargetError if it is too large."""
    return tf.nest.map_structure(lambda part: part and part.resize(size), data)


def make_values(data: Any) -> Any:
    """Return eager values of a structure of parts: without memory in an estimate."""
    return tf.nest.map_structure(
        lambda part: part and make_tensor(part.shape, part.dtype), data
    )


def make_prompt(data: Mapping[str, BatchPart]) -> dict[str, tf.Tensor]:
    """Return inputs of a language model, with masks of a prompt that leaves a few tokens open."""
    values: dict[str, tf.Tensor] = {}
    for name, part in data.items():
        if name.endswith("padding_mask"):
            tokens = part.shape[-1]
            mask = tf.sequence_mask([max(tokens - _OPEN_TOKENS, 1)], tokens, part.dtype)
            values[name] = tf.tile(mask, [part.shape[0], 1])
        else:
            values[name] = make_tensor(part.shape, part.dtype)

    return values


def make_iterator(data: Any, strategy: Any) -> Any:
    """Return an iterator over a strategy's batches, each made when the step asks for it."""

    def make_batch(number: Any) -> Any:
        index = count()
        draw = lambda part: part and part.draw(number, next(index))  # noqa: E731

        return tf.nest.map_structure(draw, _to_tuples(data))

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False

    with tf.device("CPU:0"):  # the data set's own numbers would lie on the card
        dataset = (
            tf.data.Dataset.range(_MOST_BATCHES).map(make_batch).with_options(options)
        )

    return iter(strategy.experimental_distribute_dataset(dataset))


def _to_tuples(data: Any) -> Any:
    """Return a structure with tuples instead of lists, which a data set makes tensors of."""
    if isinstance(data, Mapping):
        return {key: _to_tuples(part) for key, part in data.items()}

    if isinstance(data, list | tuple):
        return tuple(map(_to_tuples, data))

    return data


def make_inputs(model: Any, options: CaptureOptions) -> tuple[Any, int | None]:
    """Return the inputs of a Keras model, in the structure that it takes, and the batch size."""
    structure = get_input_specs(model)
    if structure is None:
        structure = _guess_specs(model, options)

    specs = {str(spec.name): spec for spec in tf.nest.flatten(structure)}
    if not specs:
        raise TargetError(
            f"The model {model.name!r} has no inputs.",
            "Give them: --shape 224,224,3, or return (tf_function, args) instead.",
        )

    for name, spec in specs.items():
        if getattr(spec, "sparse", False) or getattr(spec, "ragged", False):
            raise TargetError(
                f"The input {name!r} is sparse or ragged: its size depends on the data.",
                "Return (tf_function, args) from your file, with real arguments.",
            )

    axes: dict[str, Axes] = {}
    for name, spec in specs.items():
        axes[name] = None if spec.shape is None else tuple(spec.shape)

    shapes = fill_shapes(axes, options)
    parts = [
        make_part(shapes[str(spec.name)], spec.dtype)
        for spec in tf.nest.flatten(structure)
    ]

    batch_size = parts[0].shape[0] if parts[0].shape else None

    return tf.nest.pack_sequence_as(structure, parts), batch_size


def _guess_specs(model: Any, options: CaptureOptions) -> Any:
    """Return input specs of a model that was not made from Inputs: its built shapes, or --shape."""
    shapes: Mapping[str, Any] = options.shapes
    is_dict = len(shapes) > 1
    built = list((get_build_shapes(model) or {}).values())

    if len(built) == 1:
        is_dict = isinstance(built[0], dict)
        known = built[0] if is_dict else {"": built[0]}

        if all(map(_is_shape, known.values())):
            shapes = {name: tuple(axes[1:]) for name, axes in known.items()}

    if not shapes:
        raise TargetError(
            f"The inputs of the model {model.name!r} are unknown: it is not built and has no input "
            "shape.",
            "Give it: --shape 224,224,3; build it with keras.Input; or return (tf_function, args).",
        )

    specs = [_make_spec(model, axes, name or "input") for name, axes in shapes.items()]

    if is_dict:
        return dict(zip(shapes, specs, strict=True))

    return specs[0]


def _is_shape(shape: Any) -> bool:
    is_sequence = isinstance(shape, list | tuple)
    return is_sequence and all(isinstance(axis, int | None) for axis in shape)


def _make_spec(model: Any, axes: Any, name: str) -> Any:
    """Return the spec of an input from its axes without the batch.

    An input with at most one axis holds token numbers if the model has an embedding. Keras casts floats
    before it looks them up, so a wrong guess changes only the dtype.
    """
    kinds = {type(layer).__name__ for layer in get_layers(model)}
    dtype = str(getattr(model, "input_dtype", None) or "float32")

    if "Embedding" in kinds and len(axes) < 2:
        dtype = "int32"

    return keras.KerasTensor((None, *axes), dtype=dtype, name=name)


def make_tensor(shape: Sequence[int], dtype: Any) -> tf.Tensor:
    """Return an eager tensor of this shape and dtype; without memory in an estimate."""
    axes = tuple(shape)
    dtype = tf.as_dtype(dtype)
    _check_size(axes, dtype)

    if dtype == tf.string:
        return tf.fill(axes, "")

    if dtype == tf.bool and axes:
        # Of a mask: without masked elements, the peak is largest.
        return tf.fill(axes, True)

    value = make_unbacked_value(dtype, axes)
    if value is not None:
        return value

    if dtype in _RANDOM_FLOATS:
        return tf.random.stateless_uniform(axes, _SEED, dtype=dtype)

    return tf.zeros(axes, dtype=dtype)


def _check_size(axes: tuple[int, ...], dtype: Any) -> None:
    """Raise TargetError for more than the machine's memory (a run) or addresses (an estimate)."""
    size_bytes = math.prod(axes) * dtype.size
    limit_bytes = _ADDRESS_SPACE_BYTES

    if make_unbacked_value(tf.uint8, (1,)) is None:
        limit_bytes = read_memory_bytes()

    if size_bytes > limit_bytes:
        raise TargetError(
            f"An input or label of shape {_format_axes(axes)} takes {format_bytes(size_bytes)}; at "
            f"most {format_bytes(limit_bytes)} are possible here.",
            "Try a smaller --batch-size or --shape.",
        )


def fill_shapes(specs: Mapping[str, Axes], options: CaptureOptions) -> Shapes:
    """Return the inputs' shapes, with open axes filled from the batch size and ``--shape``.

    A shape without a name is of every input with open axes.
    """
    unknown = options.shapes.keys() - {"", *specs}
    if unknown:
        raise TargetError(
            f"There is no input {min(unknown)!r}.",
            f"Its inputs: {', '.join(sorted(specs))}.",
        )

    _check_batch(specs, options.batch_size)
    filled = {}

    for name, axes in specs.items():
        shape = options.shapes.get(name)
        is_open = len(specs) == 1 or axes is None or None in axes[1:]

        if shape is None and is_open:
            shape = options.shapes.get("")

        filled[name] = _fill_axes(name, axes, options.open_batch_size, shape)

    return filled


def _check_batch(specs: Mapping[str, Axes], batch_size: int | None) -> None:
    """Raise InputError if ``--batch-size`` fits no input's first axis."""
    batches = {name: axes and axes[0] for name, axes in specs.items() if axes != ()}
    if batch_size is None or None in batches.values() or batch_size in batches.values():
        return

    name = next(iter(batches or specs), "")

    batch = "no axes"
    if batches:
        batch = f"a batch of {batches[name]}"

    raise InputError(
        f"The input {name!r} has {batch}, not a batch of {batch_size}.",
        "Leave out --batch-size, or leave the input's first axis open.",
        kind=FailureKind.FIXED_SIZE,
    )


def _fill_axes(
    name: str,
    axes: Axes,
    batch_size: int,
    shape: tuple[int, ...] | None,
) -> tuple[int, ...]:
    """Return an input's axes: the batch, and those of its ``--shape`` if it has one."""
    if shape is None and (axes is None or None in axes[1:]):
        usual = [axis or _USUAL_SIZE for axis in axes[1:]] if axes else [224, 224, 3]
        example = _format_axes(tuple(usual))
        raise TargetError(
            f"The input {name!r} has open axes.",
            f"Fill them: --shape {name}={example}, or --shape {example} for each such input.",
        )

    if shape is not None:
        own = (None, *shape) if axes is None else axes
        pairs = zip(own[1:], shape, strict=False)
        is_same = all(axis in (None, wanted) for axis, wanted in pairs)

        if len(shape) != len(own) - 1 or not is_same:
            raise TargetError(
                f"--shape {name}={_format_axes(shape)} does not fit the input's axes "
                f"{_format_axes(own[1:])}.",
                "Give every axis but the batch.",
            )

        axes = (*own[:1], *shape)

    # Only the batch may still be open.
    return tuple(batch_size if axis is None else axis for axis in axes or ())


def _format_axes(axes: tuple[int | None, ...]) -> str:
    return ",".join("?" if axis is None else str(axis) for axis in axes)
