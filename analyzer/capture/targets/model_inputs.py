"""What a Keras model is fed with: its inputs' specs, filled and made up."""

from __future__ import annotations

from typing import Any, Final

import keras
import tensorflow as tf

from analyzer.capture.private_names import get_build_shapes, get_layers
from analyzer.capture.targets.keras_api import get_api
from analyzer.capture.targets.synthetic_inputs import (
    check_batch,
    check_names,
    describe_batch_axes,
    describe_values,
    fill_axes,
    fill_batch_axis,
    find_batch_axes,
    make_tensor_like,
)
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import TargetError

_SAY_SHAPE: Final = (
    "Give it: --shape 224,224,3; build it with keras.Input; or return (tf_function, args)."
)


def make_inputs(model: Any, options: CaptureOptions, messages: list[str]) -> tuple[Any, int | None]:
    """Return the model's inputs, in the structure that it takes, and the batch size.

    Args:
        model: A Keras model.
        options: Batch size and shapes by name.
        messages: Where to say what was made up beyond shapes.

    Raises:
        TargetError: the model says nothing of its inputs, leaves axes open, or does not fit what was
            asked for.
    """
    structure = get_api(model).input_specs(model)
    if structure is None:
        structure = _specs_of_subclass(model, options)
    flat = tf.nest.flatten(structure)
    if not flat:
        raise TargetError(
            f"The model {model.name!r} has no inputs.",
            hint="Give them: --shape 224,224,3, or return (tf_function, args) instead.",
        )
    names = [str(spec.name) for spec in flat]
    axes = [None if spec.shape is None else tuple(spec.shape) for spec in flat]
    check_names(names, options)
    check_batch(dict(zip(names, axes, strict=True)), options)
    elsewhere = find_batch_axes(dict(zip(names, axes, strict=True)), options)
    messages.extend(describe_batch_axes(elsewhere))
    tensors = []
    for spec, name, own in zip(flat, names, axes, strict=True):
        filled = fill_batch_axis(name, own, elsewhere, options.open_batch_size)
        shape = fill_axes(name, filled, options, only=len(flat) == 1)
        tensors.append(make_tensor_like(spec, shape))
        messages.extend(describe_values(name, tensors[-1]))
    batch_size = int(tensors[0].shape[0]) if tensors[0].shape.rank else None
    if elsewhere:
        batch_size = options.batch_size
    return tf.nest.pack_sequence_as(structure, tensors), batch_size


def _specs_of_subclass(model: Any, options: CaptureOptions) -> Any:
    """Return input specs of a model that was not made from Inputs."""
    built = get_build_shapes(model)
    if built and len(built) == 1:
        shape = next(iter(built.values()))
        if _is_shape(shape):
            return _spec(model, shape[1:], "input")
        if isinstance(shape, dict) and all(map(_is_shape, shape.values())):
            return {name: _spec(model, axes[1:], name) for name, axes in shape.items()}
    if options.shapes:
        named = {
            name or "input": _spec(model, shape, name or "input")
            for name, shape in options.shapes.items()
        }
        return next(iter(named.values())) if len(named) == 1 else named
    raise TargetError(
        f"The model {model.name!r} has no inputs: it is not built, and says nothing of their shape.",
        hint=_SAY_SHAPE,
    )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list | tuple) and all(
        axis is None or isinstance(axis, int) for axis in shape
    )


def _spec(model: Any, axes: Any, name: str) -> Any:
    """Return the spec of an input of which only the axes but the batch are known.

    One with at most one axis holds words where the model has an embedding; Keras casts what is not
    whole numbers before it looks them up, so that a wrong guess costs a dtype and not the step.
    """
    has_embedding = any(type(part).__name__ == "Embedding" for part in get_layers(model))
    dtype = str(getattr(model, "input_dtype", None) or "float32")
    if has_embedding and len(axes) < 2:
        dtype = "int32"
    return keras.KerasTensor((None, *axes), dtype=dtype, name=name)
