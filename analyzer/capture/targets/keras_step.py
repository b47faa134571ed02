"""Make the training or inference step of a Keras model, compiling the model if needed."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

import keras
import tensorflow as tf

from analyzer.capture.private_names import (
    FuncGraph,
    get_builder,
    get_built_variables,
    get_compile_arguments,
    get_last_layer,
    get_layers,
    get_traced_function,
    has_own_step,
    is_distributed,
)
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets import synthetic_inputs
from analyzer.capture.targets.model_changes import change_layers, rebuild
from analyzer.capture.targets.step_program import (
    Program,
    is_tf_function,
)
from analyzer.capture.targets.synthetic_inputs import make_part
from analyzer.capture.targets.target_spec import (
    OPTIMIZER,
    TargetForm,
    check_honoured,
)
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.run_note import Mode, StepConfig
from analyzer.model.errors import InputError, TargetError

# Kinds of objects that Keras looks up by name: the module, and examples for an error.
_KINDS = {
    "optimizer": (
        keras.optimizers,
        "adam, adamw, sgd, rmsprop, adagrad, adafactor or lion",
    ),
    "loss": (
        keras.losses,
        "mse, binary_crossentropy or sparse_categorical_crossentropy",
    ),
}
_MOST_PARTS = 3  # inputs, labels and sample weights

# A step of Keras' own: its call, its ``tf.function`` (None if eager), the function's arguments, and
# the tensors that Python holds while the step runs.
_KerasStep: TypeAlias = tuple[Callable[[], Any], Any, tuple[Any, ...], tuple[Any, ...]]


def make_model_program(model: Any, options: CaptureOptions) -> Program:
    """Return the training, inference or generation step of ``model``."""
    messages: list[str] = []
    model = rebuild(model, options.remedy)
    mode = cast(Mode, options.mode or "train")
    train = mode == "train"
    form = TargetForm.MODEL if train else TargetForm.INFERENCE
    check_honoured(
        f"The model {model.name!r}",
        form,
        options,
    )

    inputs, batch_size = synthetic_inputs.make_inputs(model, options)
    outputs = _build_output_specs(model, inputs)
    change_layers(model, options.remedy)

    if train:
        _make_trainable(model, inputs, outputs, options, messages)

    if options.jit is not None:
        _set_jit(model, options.jit)

    jit = bool(model.jit_compile) and not getattr(model, "run_eagerly", False)
    data = _make_data(model, inputs, outputs) if train else (inputs,)
    opened = None

    if options.is_open and train and not is_distributed(model):
        opened = synthetic_inputs.open_batch(model, data, batch_size)

    call, function, arguments, values = _STEPS[mode](model, opened or data)
    optimizer = getattr(model, "optimizer", None) if train else None

    return Program(
        call=call,
        args=values,
        function=function,
        traced_args=() if function is None else arguments,
        models=[model],
        optimizers=[optimizer] if optimizer is not None else [],
        messages=messages,
        resize=partial(_resize, model, opened) if opened else None,
        config=StepConfig(
            mode=mode,
            jit=jit,
            batch_size=batch_size,
            dtype_policy=str(getattr(model.dtype_policy, "name", "")),
        ),
    )


def _make_fit_step(model: Any, data: Any) -> _KerasStep:
    """Return the step of ``fit``: the training function that Keras makes, called with an iterator."""
    if is_distributed(model):
        # slots made in the step lie on one device only
        with model.distribute_strategy.scope():
            get_builder(model)(data_batch=data)

    model.train_function = None  # made for other settings
    run = model.make_train_function() or model.train_function
    iterator = synthetic_inputs.make_iterator(data, model.distribute_strategy)
    function = get_traced_function(run, "multi_step_on_iterator")

    return lambda: run(iterator), function, (iterator,), ()


def _make_predict_step(model: Any, data: Any) -> _KerasStep:
    """Return the step of ``predict``; Python holds the batch while it runs."""
    model.predict_function = None
    run = model.make_predict_function() or model.predict_function
    batch = [synthetic_inputs.make_values(data)]
    values = tuple(tensor for tensor in tf.nest.flatten(batch) if tensor is not None)

    return (
        lambda: run(batch),
        get_traced_function(run, "one_step_on_data"),
        (batch,),
        values,
    )


def _make_generate_step(model: Any, data: Any) -> _KerasStep:
    """Return the step of keras-hub's ``generate``, with a prompt of all tokens but a few.

    ``_build_cache`` makes the KV cache for all tokens, so the prompt's length changes no size.
    """
    if not hasattr(model, "make_generate_function"):
        raise TargetError(
            f"The model {model.name!r} has no generate().",
            "--mode generate needs a CausalLM of keras-hub; or return (tf_function, args).",
        )

    model.generate_function = None
    run = model.make_generate_function()
    inputs = synthetic_inputs.make_prompt(data[0])
    function = run if is_tf_function(run) else None

    return lambda: run(inputs), function, (inputs,), tuple(tf.nest.flatten(inputs))


def _resize(model: Any, data: Any, size: int) -> Callable[[], Any]:
    """Return the call of the training step at another size of its open batch axis."""
    data = synthetic_inputs.resize(data, size)

    return partial(
        model.train_function,
        synthetic_inputs.make_iterator(data, model.distribute_strategy),
    )


_STEPS = {
    "train": _make_fit_step,
    "infer": _make_predict_step,
    "generate": _make_generate_step,
}


def _make_trainable(
    model: Any,
    inputs: Any,
    outputs: Any,
    options: CaptureOptions,
    messages: list[str],
) -> None:
    """Compile the model if it is not compiled or another optimizer or loss is requested."""
    if not model.trainable_variables:
        raise TargetError(
            f"The model {model.name!r} has no trainable variables.",
            "Use --mode infer.",
        )

    was_compiled = bool(model.compiled)
    optimizer = loss = None

    if options.optimizer or not was_compiled:
        optimizer = _look_up("optimizer", options.optimizer or OPTIMIZER)

    if options.loss:
        loss = _look_up("loss", options.loss)
    elif not was_compiled:
        loss = choose_losses(model, inputs, outputs)

    if not was_compiled:
        jit = {} if options.jit is None else {"jit_compile": options.jit}
        _compile(model, {"optimizer": optimizer, "loss": loss, **jit})
        reason = "as asked" if options.loss else "chosen by the output"
        messages.append(
            f"The model is not compiled. Optimizer: {type(optimizer).__name__}; loss: "
            f"{format_losses(loss)} ({reason})."
        )
    elif optimizer is not None or loss is not None:
        messages.append(_recompile(model, optimizer, loss))

    optimizer = model.optimizer
    if getattr(optimizer, "built", False) and get_built_variables(optimizer) == []:
        # Keras' .h5 loader built it before the model had variables.
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        messages.append(
            "The saved optimizer was built without the model's variables: a new one replaces it."
        )


def _set_jit(model: Any, jit: bool) -> None:
    if jit and getattr(model, "run_eagerly", False):
        raise InputError(
            f"--jit cannot be used: the model {model.name!r} is compiled with run_eagerly=True.",
            "Leave it out, or compile the model without run_eagerly.",
        )

    model.jit_compile = jit

    if jit and not model.jit_compile:
        raise TargetError(
            f"The model {model.name!r} has layers that XLA cannot compile.",
            "Use --no-jit.",
        )


def _make_data(model: Any, inputs: Any, outputs: Any) -> Any:
    """Return the data of one train_step: inputs, and labels and sample weights if it takes them.

    If a custom train_step does not show how many parts it takes, a model compiled without a loss gets
    the inputs only: one tensor by itself, as ``fit(x)`` passes it (``pack_x_y_sample_weight``).
    """
    count = 2
    if has_own_step(model):
        parts = _count_parts(type(model).train_step)
        count = parts or (1 if getattr(model, "loss", None) is None else 2)

        if not parts and count == 1 and not isinstance(inputs, list | tuple):
            return inputs

    if count == 1:
        return (inputs,)

    weights = synthetic_inputs.make_part(
        tf.nest.flatten(inputs)[0].shape[:1], tf.float32
    )

    return (inputs, make_labels(model, outputs), weights)[:count]


def _count_parts(train_step: Any) -> int:
    """Return how many parts of its data a custom train_step unpacks or indexes; 0 if unknown."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(train_step)))
        _, data, *_ = inspect.signature(train_step).parameters
    except (OSError, TypeError, ValueError, SyntaxError):
        return 0

    counts = [0]

    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(parts)], value=ast.Name(name)):
                counts += [len(parts)] * (name == data)
            case ast.Subscript(ast.Name(name), ast.Constant(int(index))):
                counts += [index + 1] * (name == data)

    most = max(counts)
    return most if most <= _MOST_PARTS else 0


def _build_output_specs(model: Any, inputs: Any) -> Any:
    """Return the model's outputs as specs; the model is built, no op runs.

    ``compute_output_shape`` of a layer may leave axes open that its ``call`` knows: then the model is
    traced into a temporary graph.
    """

    def make_symbolic(part: Any) -> Any:
        return keras.KerasTensor(part.shape, part.dtype.name)

    try:
        specs = model(tf.nest.map_structure(make_symbolic, inputs))
        shapes = [tf.TensorShape(spec.shape) for spec in tf.nest.flatten(specs)]

        if all(shape.is_fully_defined() for shape in shapes):
            return specs

        with FuncGraph("outputs").as_default():
            outputs = model(synthetic_inputs.make_values(inputs))

        return tf.nest.map_structure(
            lambda out: tf.TensorSpec(out.shape, out.dtype), outputs
        )
    except Exception as error:
        raise TargetError(
            f"The model {model.name!r} cannot be called on its inputs: "
            f"{describe_user_error(error)}",
            "Check --shape, or return (tf_function, args) from your file.",
        ) from error


def _look_up(kind: str, name: str) -> Any:
    module, examples = _KINDS[kind]
    try:
        return module.get(name)
    except ValueError:
        raise TargetError(
            f"Keras has no {kind} {name!r}.",
            f"Try {examples}.",
        ) from None


def _recompile(model: Any, optimizer: Any, loss: Any) -> str:
    """Compile a compiled model with another optimizer or loss (or None); return a sentence about it."""
    arguments = {"optimizer": model.optimizer, "loss": model.loss}
    arguments |= get_compile_arguments(model)
    new = []

    if optimizer is not None:
        new.append(type(optimizer).__name__)
        arguments["optimizer"] = optimizer

    if loss is not None:
        new.append(f"the loss {format_losses(loss)}")
        arguments |= {"loss": loss, "loss_weights": None}

    _compile(model, arguments | {"jit_compile": bool(model.jit_compile)})

    return f"As asked, the compiled model is compiled again with {' and '.join(new)}."


def _compile(model: Any, arguments: dict[str, Any]) -> None:
    try:
        model.compile(**arguments)
    except TypeError as error:
        raise TargetError(
            f"The model {model.name!r} overrides compile(), which rejects these arguments: "
            f"{describe_user_error(error)}",
            "Compile it in its code, and leave out --optimizer and --loss.",
        ) from error


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
            "Use --mode infer, or compile the model in its code.",
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
            "Return (tf_function, args) from your file, with labels of your own.",
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
