"""A loss that fits each output of a model that has none, and labels that fit each loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.private_names import get_layers
from analyzer.capture.targets.keras_api import get_api, is_model
from analyzer.capture.targets.synthetic_inputs import make_tensor
from analyzer.model.errors import TargetError

_NONE: Final = "none"


def output_itself(labels: Any, output: Any) -> Any:
    """A loss for an output without axes: the model has worked out one number already."""
    del labels
    return output


def choose_losses(model: Any, inputs: Any, outputs: Any) -> Any:
    """Return a loss for each output in the outputs' structure, None where no loss fits.

    A softmax or sigmoid at the end tells the loss; so do scores for each place of a sequence of
    integers. Whole numbers and text cannot be trained on.

    Args:
        model: The model; its layers tell the last activation.
        inputs: What it is fed.
        outputs: Its outputs as specs.

    Raises:
        TargetError: no loss fits any output.
    """
    flat, api = tf.nest.flatten(outputs), get_api(model)
    whole_numbers_in = any(tensor.dtype.is_integer for tensor in tf.nest.flatten(inputs))
    chosen = [
        _fitting_loss(spec, activation, api.module.losses, whole_numbers_in=whole_numbers_in)
        for spec, activation in zip(flat, _last_activations(model, len(flat)), strict=True)
    ]
    if (
        len(flat) > 1
    ):  # Keras weighs each output of several by its batch, which a number has none of
        chosen = [None if loss is output_itself else loss for loss in chosen]
    if all(loss is None for loss in chosen):
        kinds = ", ".join(sorted({str(spec.dtype) for spec in flat})) or "nothing"
        raise TargetError(
            f"No loss fits what the model {model.name!r} returns ({kinds}).",
            hint="Use --mode infer, or compile the model in its code.",
        )
    return tf.nest.pack_sequence_as(outputs, chosen)


def shown(losses: Any) -> str:
    """Return the losses' names for a sentence."""
    flat = tf.nest.flatten(losses)
    names = [get_loss_name(loss) or _NONE for loss in flat]
    return names[0] if len(set(names)) == 1 else ", ".join(names)


def get_loss_name(loss: Any) -> str:
    """Return the name of a loss: an object, a function or a text; empty for none."""
    return str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss or "")


def make_labels(model: Any, outputs: Any) -> Any:
    """Return labels of the dtype and shape that the compiled losses take, in the outputs' structure.

    Args:
        model: The compiled model.
        outputs: Its outputs as specs.

    Raises:
        TargetError: the shape of an output depends on data.
    """
    flat = tf.nest.flatten(outputs)
    losses = _losses_by_output(model, outputs, len(flat))
    some = any(loss is not None for loss in losses)
    labels = [
        _label(model, spec, get_loss_name(loss)) if loss is not None or not some else None
        for spec, loss in zip(flat, losses, strict=True)
    ]
    return tf.nest.pack_sequence_as(outputs, labels)


def _fitting_loss(spec: Any, activation: str, losses: Any, *, whole_numbers_in: bool) -> Any:
    if not tf.as_dtype(spec.dtype).is_floating:
        return None
    if spec.shape is None or tf.TensorShape(spec.shape).rank is None:
        return losses.MeanSquaredError()
    axes = tuple(spec.shape)
    classes = int(axes[-1] or 1) if len(axes) > 1 else 1
    if not axes:
        return output_itself
    if activation == "softmax" and classes > 1:
        return losses.SparseCategoricalCrossentropy()
    if activation == "sigmoid":
        return losses.BinaryCrossentropy()
    if whole_numbers_in and len(axes) == 3 and classes > 1:
        return losses.SparseCategoricalCrossentropy(from_logits=True)
    return losses.MeanSquaredError()


def _last_activations(model: Any, count: int) -> list[str]:
    api = get_api(model)
    structure = api.output_tensors(model)
    layers = [api.last_layer(tensor) for tensor in tf.nest.flatten(structure)]
    if len(layers) != count or None in layers:
        own = [layer for layer in get_layers(model) if layer is not model]
        layers = [own[-1] if own else None] * count
    return [_activation(layer) for layer in layers]


def _activation(layer: Any) -> str:
    if type(layer).__name__ == "Softmax":
        return "softmax"
    if is_model(layer) and getattr(layer, "outputs", None):
        return _activation(get_api(layer).last_layer(layer.outputs[-1]))
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


def _label(model: Any, spec: Any, name: str) -> Any:
    axes = tf.TensorShape(spec.shape)
    if not axes.is_fully_defined():
        raise TargetError(
            f"The model {model.name!r} returns an output of shape {axes}: nothing tells how large its "
            "labels are.",
            hint="Return (tf_function, args) from your file, with labels of your own.",
        )
    shape = tuple(axes.as_list())
    if "sparse" in name and shape:
        return make_tensor(shape[:-1], tf.int32, classes=shape[-1])
    dtype = tf.as_dtype(spec.dtype)
    return make_tensor(shape, dtype if dtype.is_floating else tf.float32)


def _losses_by_output(model: Any, outputs: Any, count: int) -> Sequence[Any]:
    """Return the compiled loss of each output, flat, in the order of the outputs' structure."""
    loss = getattr(model, "loss", None)
    if not isinstance(loss, dict | list | tuple):
        return [loss] * count
    if isinstance(loss, dict):
        if isinstance(outputs, dict):
            by_key = {key: loss.get(key) for key in outputs}
            flat = [one for key in sorted(by_key) for one in _spread(by_key[key], outputs[key])]
            return flat if len(flat) == count else [None] * count
        names = list(getattr(model, "output_names", None) or loss)[:count]
        return [*(loss.get(name) for name in names), *[None] * (count - len(names))]
    flat = tf.nest.flatten(loss)
    return flat if len(flat) == count else [flat[0] if flat else None] * count


def _spread(loss: Any, outputs: Any) -> list[Any]:
    """Return one loss for each output of a nested structure."""
    wanted = len(tf.nest.flatten(outputs))
    flat: list[Any] = tf.nest.flatten(loss)
    return flat if len(flat) == wanted else flat[:1] * wanted
