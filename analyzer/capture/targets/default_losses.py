"""A loss for each output of a model that is not compiled, and labels for each loss."""

from typing import Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import get_last_layer, get_layers
from analyzer.capture.targets.synthetic_inputs import make_part
from analyzer.model.errors import TargetError


def output_itself(labels: Any, output: Any) -> Any:
    """Return the output: the loss of a model that returns one number."""
    del labels
    return output


def choose_losses(model: Any, inputs: Any, outputs: Any) -> Any:
    """Return a loss for each output, in the structure of the outputs; None if no loss fits.

    The last activation decides (softmax, sigmoid); a sequence of scores from integer inputs gets a
    classification loss. Integers and strings cannot be trained on.
    """
    specs = tf.nest.flatten(outputs)

    dtypes = [tensor.dtype for tensor in tf.nest.flatten(inputs)]
    has_integers = any(dtype.is_integer for dtype in dtypes)
    activations = _find_last_activations(model, len(specs))
    chosen: list[Any] = []

    for spec, activation in zip(specs, activations, strict=True):
        loss = _choose_loss(spec, activation, has_integer_inputs=has_integers)

        # Keras weighs each of several outputs by its batch; a number has none.
        if loss is output_itself and len(specs) > 1:
            loss = None

        chosen.append(loss)

    if all(loss is None for loss in chosen):
        returned = ", ".join(sorted({str(spec.dtype) for spec in specs})) or "nothing"
        raise TargetError(
            f"The model {model.name!r} returns {returned}: no loss fits that.",
            hint="Use --mode infer, or compile the model in its code.",
        )

    return tf.nest.pack_sequence_as(outputs, chosen)


def format_losses(losses: Any) -> str:
    """Return the names of the losses, for a sentence."""
    names = [get_loss_name(loss) or "none" for loss in tf.nest.flatten(losses)]
    return ", ".join(dict.fromkeys(names))


def get_loss_name(loss: Any) -> str:
    """Return the name of a loss object, function or string; empty for None."""
    return str(
        getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss or ""
    )


def make_labels(model: Any, outputs: Any) -> Any:
    """Return labels (parts of a batch) for the compiled losses, in the structure of the outputs."""
    specs = tf.nest.flatten(outputs)
    losses = _get_losses_by_output(model, outputs, len(specs))
    is_uncompiled = all(loss is None for loss in losses)
    labels: list[Any] = []

    for spec, loss in zip(specs, losses, strict=True):
        label = None
        if is_uncompiled or loss is not None:
            label = _make_label(model, spec, get_loss_name(loss))

        labels.append(label)

    return tf.nest.pack_sequence_as(outputs, labels)


def _choose_loss(spec: Any, activation: str, *, has_integer_inputs: bool) -> Any:
    if not tf.as_dtype(spec.dtype).is_floating:
        return None

    shape = tf.TensorShape(spec.shape)
    rank = shape.rank

    if rank == 0:
        return output_itself

    has_classes = bool(rank and rank > 1) and (shape[-1] or 1) > 1
    if activation == "softmax" and has_classes:
        return keras.losses.SparseCategoricalCrossentropy()
    if activation == "sigmoid":
        return keras.losses.BinaryCrossentropy()
    if has_integer_inputs and rank == 3 and has_classes:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return keras.losses.MeanSquaredError()


def _find_last_activations(model: Any, count: int) -> list[str]:
    """Return the name of the activation before each of ``count`` outputs; empty if unknown."""
    outputs = tf.nest.flatten(getattr(model, "outputs", None))
    layers = [get_last_layer(output) for output in outputs]

    if len(layers) != count or None in layers:
        layers = (get_layers(model, include_self=False) or [None])[-1:] * count

    return [_get_activation(layer) for layer in layers]


def _get_activation(layer: Any) -> str:
    if type(layer).__name__ == "Softmax":
        return "softmax"

    if isinstance(layer, keras.Model) and getattr(layer, "outputs", None):
        return _get_activation(get_last_layer(layer.outputs[-1]))

    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


def _make_label(model: Any, spec: Any, loss_name: str) -> Any:
    axes = tf.TensorShape(spec.shape)
    if not axes.is_fully_defined():
        raise TargetError(
            f"The model {model.name!r} returns an output of shape {axes}: the size of its labels is "
            "unknown.",
            hint="Return (tf_function, args) from your file, with labels of your own.",
        )

    shape = tuple(axes.as_list())
    if "sparse" in loss_name and shape:
        return make_part(shape[:-1], tf.int32, classes=shape[-1])

    dtype = tf.as_dtype(spec.dtype)

    return make_part(shape, dtype if dtype.is_floating else tf.float32)


def _get_losses_by_output(model: Any, outputs: Any, count: int) -> list[Any]:
    """Return the compiled loss of each output, flat, in the order of the outputs' structure."""
    loss = getattr(model, "loss", None)
    if not isinstance(loss, dict):
        return _spread(loss, count)

    losses: list[Any] = []
    if isinstance(outputs, dict):
        for key in sorted(outputs):
            losses += _spread(loss.get(key), len(tf.nest.flatten(outputs[key])))

        return losses

    names = list(getattr(model, "output_names", None) or loss)
    losses = [loss.get(name) for name in names[:count]]
    missing = count - len(losses)

    return losses + [None] * missing


def _spread(loss: Any, count: int) -> list[Any]:
    """Return one loss for each of ``count`` outputs; the first one if their numbers differ."""
    flat: list[Any] = tf.nest.flatten(loss)
    if len(flat) == count:
        return flat

    return [flat[0] if flat else None] * count
