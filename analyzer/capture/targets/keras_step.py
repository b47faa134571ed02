"""Make the training or inference step of a Keras model, compiling the model if needed."""

from __future__ import annotations

import dis
from typing import Any, Final

import tensorflow as tf

from analyzer.capture.graph.as_if_gpu import explain_jit
from analyzer.capture.private_names import get_built_variables, get_compile_arguments
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets.default_losses import choose_losses, format_losses, make_labels
from analyzer.capture.targets.honoured_options import (
    Option,
    TargetForm,
    check_honoured,
    list_given_options,
)
from analyzer.capture.targets.keras_api import (
    get_keras,
    get_loss_method,
    get_output_specs,
    get_step,
    is_compiled,
    is_keras_3,
)
from analyzer.capture.targets.model_changes import (
    change_layers,
    change_optimizer,
    rebuild_with_blocks,
)
from analyzer.capture.targets.step_program import Program, Promise, Used
from analyzer.capture.targets.synthetic_inputs import make_inputs
from analyzer.capture.targets.target_spec import OPTIMIZER
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import InputError, TargetError

_KERAS_2_JIT: Final = (
    "Estimated as compile() says: Keras 2 uses XLA only with jit_compile=True (--jit)."
)


def make_model_program(model: Any, options: CaptureOptions) -> Program:
    """Return the training or inference step of ``model``.

    Raises:
        TargetError: the model has no inputs, leaves axes open, or cannot be built or compiled.
        InputError: it cannot honour an option.
    """
    messages: list[str] = []
    model = rebuild_with_blocks(model, options.remedy)
    train = (options.mode or "train") == "train"
    form = _choose_form(model, train=train)
    check_honoured(f"The model {model.name!r}", form, list_given_options(options))
    inputs, batch_size = make_inputs(model, options, messages)
    outputs = _build_output_specs(model, inputs)
    if train:
        change_layers(model, options.remedy)
        _make_trainable(model, inputs, outputs, options, messages)
        change_optimizer(model, options.remedy)
    _set_jit(model, options)
    runs_eagerly = bool(getattr(model, "run_eagerly", False))
    uses_model_jit = train or options.gpu
    jit = bool(model.jit_compile if uses_model_jit else options.jit) and not runs_eagerly
    data = _make_data(model, inputs, outputs) if train else (inputs,)
    step = get_step(model, train=train)
    function = None if runs_eagerly else _make_function(step, jit=jit)
    run = step if function is None else function
    optimizer = getattr(model, "optimizer", None) if train else None
    return Program(
        call=lambda: run(data),
        args=tuple(x for x in tf.nest.flatten(data, expand_composites=True) if x is not None),
        function=function,
        traced_args=() if runs_eagerly else (data,),
        models=[model],
        optimizers=[optimizer] if optimizer is not None else [],
        messages=messages,
        promises=_make_promises(model, options) if train else [],
        jit_reason=_explain_jit(model, jit, options),
        config=_make_config(model, optimizer, train=train, jit=jit, batch_size=batch_size),
    )


def _choose_form(model: Any, *, train: bool) -> TargetForm:
    """Return which options apply to a model's step."""
    if not train:
        return TargetForm.INFERENCE
    return TargetForm.COMPILED_MODEL if is_compiled(model) else TargetForm.MODEL


def _make_config(
    model: Any, optimizer: Any, *, train: bool, jit: bool, batch_size: int | None
) -> StepConfig:
    return StepConfig(
        mode="train" if train else "infer",
        jit=jit,
        batch_size=batch_size,
        optimizer=type(optimizer).__name__ if optimizer is not None else "",
        dtype_policy=str(getattr(model.dtype_policy, "name", "")),
    )


def _explain_jit(model: Any, jit: bool, options: CaptureOptions) -> str:
    """Return why a step on a card does or does not use XLA; empty on the CPU."""
    if not options.gpu:
        return ""
    return explain_jit(model, jit, options.jit) if is_keras_3(model) else _KERAS_2_JIT


def _make_trainable(
    model: Any, inputs: Any, outputs: Any, options: CaptureOptions, messages: list[str]
) -> None:
    """Compile the model if it is not compiled or another optimizer or loss is requested."""
    if not model.trainable_variables:
        raise TargetError(
            f"The model {model.name!r} has no trainable variables.", hint="Use --mode infer."
        )
    if not is_compiled(model):
        _compile(model, inputs, outputs, options, messages)
    elif options.optimizer or options.loss:
        _recompile(model, options, messages)
    _renew_optimizer(model, messages)


def _set_jit(model: Any, options: CaptureOptions) -> None:
    if options.jit is None:
        return
    if options.jit and getattr(model, "run_eagerly", False):
        raise InputError(
            f"--jit cannot be used: the model {model.name!r} is compiled with run_eagerly=True.",
            hint="Leave it out, or compile the model without run_eagerly.",
        )
    model.jit_compile = options.jit
    if options.jit and not model.jit_compile:
        raise TargetError(
            f"The model {model.name!r} has layers that XLA cannot compile.", hint="Use --no-jit."
        )


def _make_function(step: Any, *, jit: bool) -> Any:
    """Return the ``tf.function`` of a step, nested as in Keras' ``fit``.

    ``fit`` compiles an inner function with XLA and calls it from a plain one, so that the compiled step
    is a node of a graph.
    """

    def one_step_on_data(batch: Any) -> Any:
        return step(batch)

    function = tf.function(one_step_on_data, jit_compile=jit, autograph=False)
    return tf.function(lambda batch: function(batch), autograph=False) if jit else function


def _make_data(model: Any, inputs: Any, outputs: Any) -> tuple[Any, ...]:
    """Return the data of one train_step: inputs, and labels and sample weights if it takes them.

    If a custom train_step does not show how many parts it unpacks, a model compiled without a loss gets
    the inputs only.
    """
    parts = _count_unpacked_parts(model)
    if parts is None:
        parts = 1 if _has_own_step(model) and getattr(model, "loss", None) is None else 2
    if parts == 1:
        return (inputs,)
    data = (inputs, make_labels(model, outputs))
    if parts == 2:
        return data
    return (*data, tf.ones([int(tf.nest.flatten(inputs)[0].shape[0])]))


def _has_own_step(model: Any) -> bool:
    return type(model).train_step is not get_keras(model).Model.train_step


def _count_unpacked_parts(model: Any) -> int | None:
    """Return into how many names a custom train_step unpacks its data; None if unknown."""
    code = getattr(type(model).train_step, "__code__", None)
    if not _has_own_step(model) or code is None or code.co_argcount < 2:
        return None
    data, previous = code.co_varnames[1], None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "UNPACK_SEQUENCE" and previous is not None:
            loads_data = previous.opname.startswith("LOAD_FAST") and previous.argval == data
            count = int(instruction.arg or 0)
            if loads_data and 1 <= count <= 3:
                return count
        previous = instruction
    return None


def _build_output_specs(model: Any, inputs: Any) -> Any:
    """Return the model's outputs as specs; the model is built, no op runs."""
    try:
        return get_output_specs(model, inputs)
    except Exception as error:
        raise TargetError(
            f"The model {model.name!r} cannot be called on its inputs: "
            f"{describe_user_error(error)}",
            hint="Check --shape, or return (tf_function, args) from your file.",
        ) from error


def _get_optimizer(model: Any, name: str) -> Any:
    try:
        return get_keras(model).optimizers.get(name)
    except ValueError:
        raise TargetError(
            f"Keras has no optimizer {name!r}.",
            hint="Try adam, adamw, sgd, rmsprop, adagrad, adafactor or lion.",
        ) from None


def _get_loss(model: Any, name: str) -> Any:
    try:
        return get_keras(model).losses.get(name)
    except ValueError:
        raise TargetError(
            f"Keras has no loss {name!r}.",
            hint="Try mse, binary_crossentropy or sparse_categorical_crossentropy.",
        ) from None


def _compile(
    model: Any, inputs: Any, outputs: Any, options: CaptureOptions, messages: list[str]
) -> None:
    """Compile an uncompiled model with the requested or default optimizer and loss."""
    optimizer = _get_optimizer(model, options.optimizer or OPTIMIZER)
    losses = (
        _get_loss(model, options.loss) if options.loss else choose_losses(model, inputs, outputs)
    )
    reason = "as asked" if options.loss else "it fits the output"
    jit = {} if options.jit is None else {"jit_compile": options.jit}
    _call_compile(model, {"optimizer": optimizer, "loss": losses, **jit})
    messages.append(
        f"The model is not compiled: {type(optimizer).__name__} and the loss {format_losses(losses)} "
        f"are used ({reason})."
    )


def _recompile(model: Any, options: CaptureOptions, messages: list[str]) -> None:
    """Compile a compiled model with another optimizer or loss; keep its other settings."""
    arguments = get_compile_arguments(model)
    replaced: list[str] = []
    if options.optimizer:
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        replaced.append(f"the optimizer {type(inner).__name__}")
        arguments["optimizer"] = _get_optimizer(model, options.optimizer)
    if options.loss:
        name = format_losses(model.loss) if model.loss is not None else "none"
        replaced.append(f"the loss {name}")
        arguments["loss"] = _get_loss(model, options.loss)
        arguments.pop("loss_weights", None)
    arguments.setdefault("optimizer", model.optimizer)
    arguments.setdefault("loss", model.loss)
    arguments["jit_compile"] = bool(model.jit_compile)
    _call_compile(model, arguments)
    asked = " and ".join(filter(None, (options.optimizer, options.loss)))
    messages.append(f"As asked, {asked} replaces {' and '.join(replaced)} of the compiled model.")


def _call_compile(model: Any, arguments: dict[str, Any]) -> None:
    try:
        model.compile(**arguments)
    except TypeError as error:
        raise TargetError(
            f"The model {model.name!r} overrides compile(), which rejects these arguments: "
            f"{describe_user_error(error)}",
            hint="Compile it in its code, and leave out --optimizer and --loss.",
        ) from error


def _make_promises(model: Any, options: CaptureOptions) -> list[Promise]:
    """Return checks that a custom train_step uses the requested optimizer and loss."""
    if not _has_own_step(model):
        return []
    loss, loss_method = get_loss_method(model)
    promises: list[Promise] = []
    for option, value, owner, method in (
        (Option.OPTIMIZER, options.optimizer, model.optimizer, "apply"),
        (Option.LOSS, options.loss, loss, loss_method),
    ):
        if value and owner is not None:
            error = InputError(
                f"{option} {value} cannot be used: the train_step of the model {model.name!r} never "
                "calls it.",
                hint="Leave it out, and change the model's own train_step or compile.",
            )
            promises.append(Used(owner, method, error))
    return promises


def _renew_optimizer(model: Any, messages: list[str]) -> None:
    """Replace an optimizer that was built for other variables than the model's.

    Keras' .h5 loader builds it before the model has variables, and the first step then fails.
    """
    optimizer = model.optimizer
    built = get_built_variables(optimizer)
    if not getattr(optimizer, "built", False) or built is None:
        return
    if not {id(v) for v in model.trainable_variables} <= {id(v) for v in built}:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        messages.append(
            "The saved optimizer was built without the model's variables: a new one replaces it."
        )
