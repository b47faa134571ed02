"""A Keras model to a step: compiled where it is not, fed with tensors made from its specs."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from analyzer.capture.as_if_gpu import why_jit
from analyzer.capture.frames import describe_user_error
from analyzer.capture.program import Program
from analyzer.capture.spec import CaptureOptions
from analyzer.capture.synthesize import fill_axes, tensor_for
from analyzer.errors import TargetError
from analyzer.model import StepConfig


def program_for_model(model: Any, options: CaptureOptions) -> Program:
    """Return the training or inference step of ``model``.

    Raises:
        TargetError: the model has no inputs, leaves axes open, or cannot be built or compiled.
    """
    notes: list[str] = []
    inputs, batch_size = make_inputs(model, options)
    outputs = _output_specs(model, inputs)
    train = (options.mode or "train") == "train"
    if train and not model.trainable_variables:
        raise TargetError(
            f"The model {model.name!r} has no trainable variables.", hint="Use --mode infer."
        )
    if train and not model.compiled:
        _compile(model, inputs, outputs, options, notes)
    if train:
        _renew_optimizer(model, notes)
    if options.jit is not None:
        model.jit_compile = options.jit
        if options.jit and not model.jit_compile:
            raise TargetError(
                f"The model {model.name!r} has layers that XLA cannot compile.",
                hint="Use --no-jit.",
            )
    eagerly = bool(getattr(model, "run_eagerly", False))
    chosen = model.jit_compile if train or options.gpu else options.jit
    jit = bool(not eagerly and chosen)
    if train:
        labels = _labels(model, outputs, notes)
        data: tuple[Any, ...] = (inputs, labels)
        function, call, traced = _step(model.train_step, data, jit=jit, eagerly=eagerly)
    else:
        data = (inputs,)
        function, call, traced = _step(model.predict_step, data, jit=jit, eagerly=eagerly)
    optimizer = getattr(model, "optimizer", None) if train else None
    return Program(
        call=call,
        args=tuple(tf.nest.flatten(data)),
        function=function,
        traced_args=traced,
        models=[model],
        optimizers=[optimizer] if optimizer is not None else [],
        notes=notes,
        jit_reason=why_jit(model, jit, options.jit) if options.gpu else "",
        config=StepConfig(
            mode="train" if train else "infer",
            jit=jit,
            batch_size=batch_size,
            optimizer=type(optimizer).__name__ if optimizer is not None else "",
            dtype_policy=str(getattr(model.dtype_policy, "name", "")),
        ),
    )


def _step(body: Any, data: Any, *, jit: bool, eagerly: bool) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the function, the call and the arguments to trace it with, as Keras' fit nests them.

    ``fit`` compiles the inner function of one step with XLA and calls it from a plain one, so that
    the compiled step is a node of a graph and not a call from Python.
    """
    if eagerly:
        return None, lambda: body(data), ()

    def one_step_on_data(batch: Any) -> Any:
        return body(batch)

    step_function = tf.function(one_step_on_data, jit_compile=jit, autograph=False)
    if jit:
        inner = step_function
        step_function = tf.function(lambda batch: inner(batch), autograph=False)
    return step_function, lambda: step_function(data), (data,)


def make_inputs(model: Any, options: CaptureOptions) -> tuple[Any, int | None]:
    """Return the model's inputs, in the structure that it takes, and the batch size.

    Raises:
        TargetError: the model says nothing of its inputs, or leaves axes open.
    """
    structure = getattr(model, "_inputs_struct", None)
    if structure is None and getattr(model, "inputs", None):
        structure = model.inputs if len(model.inputs) > 1 else model.inputs[0]
    if structure is None:
        structure = _specs_of_subclass(model, options)
    flat = tf.nest.flatten(structure)
    if not flat:
        raise TargetError(
            f"The model {model.name!r} has no inputs.",
            hint="Give them: --shape 224,224,3, or return (tf_function, args) instead.",
        )
    known = {str(spec.name) for spec in flat}
    unknown = sorted(name for name in options.shapes if name and name not in known)
    if unknown:
        raise TargetError(
            f"The model has no input {unknown[0]!r}.",
            hint=f"Its inputs: {', '.join(sorted(known))}.",
        )
    tensors = []
    for spec in flat:
        axes = None if spec.shape is None else tuple(spec.shape)
        shape = fill_axes(str(spec.name), axes, options, only=len(flat) == 1)
        tensors.append(tensor_for(shape, spec.dtype))
    batch_size = int(tensors[0].shape[0]) if tensors[0].shape.rank else None
    return tf.nest.pack_sequence_as(structure, tensors), batch_size


def _specs_of_subclass(model: Any, options: CaptureOptions) -> Any:
    """Return input specs of a model that was not made from Inputs."""
    built = getattr(model, "_build_shapes_dict", None)
    if built and len(built) == 1:
        shape = next(iter(built.values()))
        if isinstance(shape, list | tuple) and all(
            axis is None or isinstance(axis, int) for axis in shape
        ):
            return keras.KerasTensor((None, *shape[1:]), dtype=_input_dtype(model), name="input")
    if options.shapes:
        named = {
            name or "input": keras.KerasTensor(
                (None, *shape), dtype=_input_dtype(model), name=name or "input"
            )
            for name, shape in options.shapes.items()
        }
        return next(iter(named.values())) if len(named) == 1 else named
    raise TargetError(
        f"The model {model.name!r} has no inputs: it is not built, and says nothing of their shape.",
        hint="Give it: --shape 224,224,3; build it with keras.Input; or return (tf_function, args).",
    )


def _input_dtype(model: Any) -> str:
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Embedding):
            return "int32"
    return str(getattr(model, "input_dtype", None) or "float32")


def _output_specs(model: Any, inputs: Any) -> list[Any]:
    """Return the model's outputs as specs, building it on the way; no op is run."""
    try:
        symbolic = tf.nest.map_structure(
            lambda tensor: keras.KerasTensor(tuple(tensor.shape), dtype=tensor.dtype.name), inputs
        )
        outputs = model(symbolic)
    except Exception as error:
        raise TargetError(
            f"The model {model.name!r} cannot be called on its inputs: "
            f"{describe_user_error(error)}",
            hint="Check --shape, or return (tf_function, args) from your file.",
        ) from error
    return list(tf.nest.flatten(outputs))


def _compile(
    model: Any, inputs: Any, outputs: list[Any], options: CaptureOptions, notes: list[str]
) -> None:
    try:
        optimizer = keras.optimizers.get(options.optimizer)
    except ValueError:
        raise TargetError(
            f"Keras has no optimizer {options.optimizer!r}.",
            hint="Try adam, adamw, sgd, rmsprop, adagrad, adafactor or lion.",
        ) from None
    if options.loss:
        try:
            losses: Any = keras.losses.get(options.loss)
        except ValueError:
            raise TargetError(
                f"Keras has no loss {options.loss!r}.",
                hint="Try mse, binary_crossentropy or sparse_categorical_crossentropy.",
            ) from None
        reason = "as asked"
    else:
        losses, reason = _fitting_losses(model, inputs, outputs)
    jit = "auto" if options.jit is None else options.jit
    model.compile(optimizer=optimizer, loss=losses, jit_compile=jit)
    shown = ", ".join(
        getattr(loss, "name", str(loss)) for loss in tf.nest.flatten(losses) if loss is not None
    )
    notes.append(
        f"The model is not compiled: {type(optimizer).__name__} and the loss {shown} are used "
        f"({reason})."
    )


def _renew_optimizer(model: Any, notes: list[str]) -> None:
    """Replace an optimizer that was built for other variables than the model's.

    Keras' .h5 loader builds it before the model has any, and the first step then fails.
    """
    optimizer = model.optimizer
    built_for = getattr(optimizer, "_trainable_variables", None)
    if not getattr(optimizer, "built", False) or built_for is None:
        return
    wanted = {id(variable) for variable in model.trainable_variables}
    if not wanted <= {id(variable) for variable in built_for}:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        notes.append("The saved optimizer was built for no variables of the model: it is renewed.")


def _fitting_losses(model: Any, inputs: Any, outputs: list[Any]) -> tuple[Any, str]:
    """Return a loss for each output, chosen by its last activation and shape."""
    integers_in = any(tensor.dtype.is_integer for tensor in tf.nest.flatten(inputs))
    activations = _last_activations(model, len(outputs))
    chosen: list[Any] = []
    for spec, activation in zip(outputs, activations, strict=True):
        classes = spec.shape[-1] if len(spec.shape) > 1 else None
        if activation == "softmax":
            chosen.append(keras.losses.SparseCategoricalCrossentropy())
        elif activation == "sigmoid":
            chosen.append(keras.losses.BinaryCrossentropy())
        elif integers_in and len(spec.shape) == 3 and classes and classes > 1:
            chosen.append(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        else:
            chosen.append(keras.losses.MeanSquaredError())
    reason = "it fits the output"
    if len(chosen) == 1:
        return chosen[0], reason
    structure = getattr(model, "_outputs_struct", None)
    if structure is None:
        return chosen, reason
    return tf.nest.pack_sequence_as(structure, chosen), reason


def _last_activations(model: Any, count: int) -> list[str]:
    tensors = getattr(model, "outputs", None) or []
    if len(tensors) != count:
        layers = [layer for layer in model._flatten_layers() if layer is not model]
        last = layers[-1] if layers else None
        return [_activation(last)] * count
    return [_activation(tensor._keras_history.operation) for tensor in tensors]


def _activation(layer: Any) -> str:
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    if isinstance(layer, keras.Model) and getattr(layer, "outputs", None):
        return _activation(layer.outputs[-1]._keras_history.operation)
    return str(getattr(getattr(layer, "activation", None), "__name__", ""))


def _labels(model: Any, outputs: list[Any], notes: list[str]) -> Any:
    """Return labels of the dtype and shape that the model's loss takes."""
    losses = _losses_by_output(model, len(outputs))
    labels = []
    for spec, loss in zip(outputs, losses, strict=True):
        name = str(getattr(loss, "name", None) or getattr(loss, "__name__", None) or loss or "")
        shape = tuple(int(axis) for axis in spec.shape)
        if "sparse" in name:
            labels.append(tensor_for(shape[:-1], tf.int32, classes=shape[-1]))
        else:
            labels.append(tensor_for(shape, tf.float32 if "int" in str(spec.dtype) else spec.dtype))
    if len(labels) == 1:
        return labels[0]
    structure = getattr(model, "_outputs_struct", None)
    return labels if structure is None else tf.nest.pack_sequence_as(structure, labels)


def _losses_by_output(model: Any, count: int) -> list[Any]:
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        names = getattr(model, "output_names", None) or list(loss)
        return [loss.get(name) for name in names][:count] + [None] * (count - len(names))
    if isinstance(loss, list | tuple):
        flat = tf.nest.flatten(loss)
        return flat if len(flat) == count else [flat[0]] * count
    return [loss] * count
