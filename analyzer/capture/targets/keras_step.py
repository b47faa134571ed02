"""A Keras model to a step: compiled where it is not, fed with tensors made from its specs."""

from __future__ import annotations

import dis
from typing import Any, Final

import keras
import tensorflow as tf

from analyzer.capture.graph.as_if_gpu import explain_jit
from analyzer.capture.private_names import get_built_variables, get_compile_arguments
from analyzer.capture.remedies.model_changes import (
    change_layers,
    change_optimizer,
    rebuild_with_blocks,
)
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets.default_losses import choose_losses, make_labels, shown
from analyzer.capture.targets.honoured_options import (
    Option,
    TargetForm,
    check_honoured,
    list_given_options,
    make_eager_jit_error,
    make_unused_error,
)
from analyzer.capture.targets.keras_api import get_api
from analyzer.capture.targets.model_inputs import make_inputs
from analyzer.capture.targets.option_checks import Used
from analyzer.capture.targets.step_program import Program
from analyzer.capture.targets.target_spec import OPTIMIZER
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import TargetError

_KERAS_2S_JIT: Final = (
    "Estimated as the model's compile says: Keras 2 compiles a step with XLA only where it says "
    "jit_compile=True (--jit)."
)


def make_model_program(model: Any, options: CaptureOptions) -> Program:
    """Return the training or inference step of ``model``.

    Raises:
        TargetError: the model has no inputs, leaves axes open, or cannot be built or compiled.
        InputError: it cannot honour an option.
    """
    messages: list[str] = []
    model = rebuild_with_blocks(model, options.remedy)
    api = get_api(model)
    train = (options.mode or "train") == "train"
    check_honoured(
        f"The model {model.name!r}", _form(model, train=train), list_given_options(options)
    )
    inputs, batch_size = make_inputs(model, options, messages)
    outputs = _output_specs(model, inputs)
    if train:
        change_layers(model, options.remedy)
        _make_trainable(model, inputs, outputs, options, messages)
        change_optimizer(model, options.remedy)
    _choose_jit(model, options)
    eagerly = bool(getattr(model, "run_eagerly", False))
    chosen = api.jit(model) if train or options.gpu else options.jit
    jit = bool(not eagerly and chosen)
    data = _fed(model, inputs, outputs) if train else (inputs,)
    body = api.body(model, train=train)
    function, call, traced = _step(body, data, jit=jit, eagerly=eagerly)
    optimizer = getattr(model, "optimizer", None) if train else None
    return Program(
        call=call,
        args=tuple(x for x in tf.nest.flatten(data, expand_composites=True) if x is not None),
        function=function,
        traced_args=traced,
        models=[model],
        optimizers=[optimizer] if optimizer is not None else [],
        messages=messages,
        promises=_promises(model, options) if train else [],
        jit_reason=_why_jit(model, jit, options) if options.gpu else "",
        config=StepConfig(
            mode="train" if train else "infer",
            jit=jit,
            batch_size=batch_size,
            optimizer=type(optimizer).__name__ if optimizer is not None else "",
            dtype_policy=str(getattr(model.dtype_policy, "name", "")),
        ),
    )


def _why_jit(model: Any, jit: bool, options: CaptureOptions) -> str:
    return explain_jit(model, jit, options.jit) if isinstance(model, keras.Model) else _KERAS_2S_JIT


def _form(model: Any, *, train: bool) -> TargetForm:
    if not train:
        return TargetForm.INFERENCE
    is_compiled = get_api(model).is_compiled(model)
    return TargetForm.COMPILED_MODEL if is_compiled else TargetForm.MODEL


def _make_trainable(
    model: Any, inputs: Any, outputs: Any, options: CaptureOptions, messages: list[str]
) -> None:
    """Compile the model where it is not, or where another optimizer or loss is asked for."""
    if not model.trainable_variables:
        raise TargetError(
            f"The model {model.name!r} has no trainable variables.", hint="Use --mode infer."
        )
    if not get_api(model).is_compiled(model):
        _compile(model, inputs, outputs, options, messages)
    elif options.optimizer or options.loss:
        _compile_anew(model, options, messages)
    _renew_optimizer(model, messages)


def _choose_jit(model: Any, options: CaptureOptions) -> None:
    if options.jit is None:
        return
    if options.jit and getattr(model, "run_eagerly", False):
        raise make_eager_jit_error(f"The model {model.name!r}")
    model.jit_compile = options.jit
    if options.jit and not model.jit_compile:
        raise TargetError(
            f"The model {model.name!r} has layers that XLA cannot compile.", hint="Use --no-jit."
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


def _fed(model: Any, inputs: Any, outputs: Any) -> tuple[Any, ...]:
    """Return what ``fit`` would hand to the model's train_step: inputs, and labels where it takes them.

    A train_step of the user's own takes apart what it is given; where its first lines do not tell into
    how many parts, a model compiled without a loss is fed with inputs alone.
    """
    parts = _parts_taken(model)
    if parts is None:
        parts = 1 if _has_own_step(model) and getattr(model, "loss", None) is None else 2
    if parts == 1:
        return (inputs,)
    fed = (inputs, make_labels(model, outputs))
    if parts == 2:
        return fed
    return (*fed, tf.ones([int(tf.nest.flatten(inputs)[0].shape[0])]))


def _has_own_step(model: Any) -> bool:
    return type(model).train_step is not get_api(model).module.Model.train_step


def _parts_taken(model: Any) -> int | None:
    """Return into how many names a train_step of the user's own unpacks its data; None if not said."""
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


def _output_specs(model: Any, inputs: Any) -> Any:
    """Return the model's outputs as specs, building it on the way; no op is run."""
    try:
        return get_api(model).output_specs(model, inputs)
    except Exception as error:
        raise TargetError(
            f"The model {model.name!r} cannot be called on its inputs: "
            f"{describe_user_error(error)}",
            hint="Check --shape, or return (tf_function, args) from your file.",
        ) from error


def _optimizer(model: Any, name: str) -> Any:
    try:
        return get_api(model).module.optimizers.get(name)
    except ValueError:
        raise TargetError(
            f"Keras has no optimizer {name!r}.",
            hint="Try adam, adamw, sgd, rmsprop, adagrad, adafactor or lion.",
        ) from None


def _loss(model: Any, name: str) -> Any:
    try:
        return get_api(model).module.losses.get(name)
    except ValueError:
        raise TargetError(
            f"Keras has no loss {name!r}.",
            hint="Try mse, binary_crossentropy or sparse_categorical_crossentropy.",
        ) from None


def _compile(
    model: Any, inputs: Any, outputs: Any, options: CaptureOptions, messages: list[str]
) -> None:
    optimizer = _optimizer(model, options.optimizer or OPTIMIZER)
    losses = _loss(model, options.loss) if options.loss else choose_losses(model, inputs, outputs)
    reason = "as asked" if options.loss else "it fits the output"
    jit = {} if options.jit is None else {"jit_compile": options.jit}
    _call_compile(model, {"optimizer": optimizer, "loss": losses, **jit})
    messages.append(
        f"The model is not compiled: {type(optimizer).__name__} and the loss {shown(losses)} are "
        f"used ({reason})."
    )


def _compile_anew(model: Any, options: CaptureOptions, messages: list[str]) -> None:
    """Compile a compiled model with another optimizer or loss; all else stays as the model has it."""
    kept = get_compile_arguments(model)
    changed: list[str] = []
    if options.optimizer:
        changed.append(f"the optimizer {_optimizer_name(model)}")
        kept["optimizer"] = _optimizer(model, options.optimizer)
    if options.loss:
        changed.append(f"the loss {shown(model.loss) if model.loss is not None else 'none'}")
        kept["loss"] = _loss(model, options.loss)
        kept.pop("loss_weights", None)
    kept.setdefault("optimizer", model.optimizer)
    kept.setdefault("loss", model.loss)
    kept["jit_compile"] = get_api(model).jit(model)
    _call_compile(model, kept)
    asked = " and ".join(filter(None, (options.optimizer, options.loss)))
    messages.append(
        f"As asked, {asked} takes the place of what the model is compiled with: "
        f"{' and '.join(changed)}."
    )


def _optimizer_name(model: Any) -> str:
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return type(inner).__name__


def _call_compile(model: Any, arguments: dict[str, Any]) -> None:
    try:
        model.compile(**arguments)
    except TypeError as error:
        raise TargetError(
            f"The model {model.name!r} has a compile of its own: {describe_user_error(error)}",
            hint="Compile it in its code, and leave out --optimizer and --loss.",
        ) from error


def _promises(model: Any, options: CaptureOptions) -> list[Any]:
    """Return checks that a train_step of the user's own uses the optimizer and loss asked for."""
    if not _has_own_step(model):
        return []
    promises = []
    for option, value, owner, method in (
        (Option.OPTIMIZER, options.optimizer, model.optimizer, "apply"),
        (Option.LOSS, options.loss, *get_api(model).loss_method(model)),
    ):
        if value and owner is not None:
            error = make_unused_error(f"the model {model.name!r}", option, value)
            promises.append(Used(owner, method, error))
    return promises


def _renew_optimizer(model: Any, messages: list[str]) -> None:
    """Replace an optimizer that was built for other variables than the model's.

    Keras' .h5 loader builds it before the model has any, and the first step then fails.
    """
    optimizer = model.optimizer
    known = get_built_variables(optimizer)
    if not getattr(optimizer, "built", False) or known is None:
        return
    wanted = {id(variable) for variable in model.trainable_variables}
    if not wanted <= {id(variable) for variable in known}:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        messages.append(
            "The saved optimizer was built for no variables of the model: it is renewed."
        )
