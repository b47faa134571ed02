"""Load what a target names and make it a step that can be called."""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import keras
import tensorflow as tf

from analyzer.capture.private_names import get_function_options, is_jit_compiled
from analyzer.capture.remedies.model_changes import apply_while_building, check_step_remedy
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets import dtype_policies as policies
from analyzer.capture.targets.honoured_options import (
    Option,
    TargetForm,
    check_honoured,
    list_given_options,
)
from analyzer.capture.targets.keras_api import (
    is_layer,
    is_model,
    is_model_class,
    set_keras_2_policy,
)
from analyzer.capture.targets.keras_step import make_model_program
from analyzer.capture.targets.option_checks import NothingCompiled
from analyzer.capture.targets.step_program import Program
from analyzer.capture.targets.synthetic_inputs import (
    check_batch,
    check_names,
    describe_batch_axes,
    describe_shared_batch,
    fill_axes,
    fill_batch_axis,
    find_batch_axes,
    make_tensor,
)
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import TargetError

_OWNERS: Final = ("model", "models", "optimizer", "optimizers")
"""Attributes that a step may carry its model and optimizer in."""


def resolve(spec: TargetSpec, options: CaptureOptions) -> Program:
    """Return the step that ``spec`` names.

    Raises:
        TargetError: it cannot be found, built or called; the message names the user's own line.
    """
    if options.dtype_policy:
        policies.ask_for(options.dtype_policy)
    load: dict[TargetKind, Callable[[TargetSpec, CaptureOptions], Any]] = {
        TargetKind.APPLICATION: _application,
        TargetKind.FILE: _from_file,
        TargetKind.MODULE: _from_module,
        TargetKind.KERAS_FILE: _keras_file,
        TargetKind.SAVED_MODEL: _saved_model,
    }
    with apply_while_building(options.remedy, spec.text):
        program = make_program(load[spec.kind](spec, options), spec.text, options)
    if options.dtype_policy:
        policies.check_followed(program, spec.text, options.dtype_policy)
    return program


def make_program(
    thing: Any, text: str, options: CaptureOptions, *, called: bool = False
) -> Program:
    """Return the step of a model, a ``tf.function``, ``(function, args)`` or a maker of one.

    Args:
        thing: What the target's name stands for.
        text: What the user named, for errors.
        options: How the step is made and run.
        called: Whether ``thing`` was returned by a function of the user's that has been called
            already.

    Raises:
        TargetError: it is none of these.
    """
    if isinstance(thing, Program):
        return thing
    if is_model(thing):
        return make_model_program(thing, options)
    if is_layer(thing):
        raise TargetError(f"{text} is a layer, not a model.", hint="Wrap it in keras.Sequential.")
    if isinstance(thing, tuple | list) and len(thing) == 2 and callable(thing[0]):
        check_step_remedy(options.remedy, text)
        args = thing[1] if isinstance(thing[1], tuple | list) else (thing[1],)
        form = TargetForm.STEP if _is_tf_function(thing[0]) else TargetForm.EAGER_STEP
        check_honoured(text, form, list_given_options(options) - _met_already(args, options))
        return _program_for_function(thing[0], tuple(args), text, options)
    if _is_tf_function(thing):
        check_step_remedy(options.remedy, text)
        check_honoured(text, _form_of(thing), list_given_options(options))
        return _program_for_signature(thing, text, options)
    if is_model_class(thing):
        return make_model_program(_run_user_code(thing, text), options)
    if callable(thing) and not called:
        return make_program(_run_user_code(thing, text), text, options, called=True)
    raise TargetError(
        f"{text} is a {type(thing).__name__}, not a model or a step.",
        hint="Expected a Keras model, a function that returns one, a tf.function, or a function "
        "that returns (tf_function, args).",
    )


def _form_of(function: Any) -> TargetForm:
    """Tell a ``tf.function`` that says what it takes from one that takes nothing."""
    return TargetForm.SIGNATURE if tf.nest.flatten(_signature(function)) else TargetForm.STEP


def _is_tf_function(thing: Any) -> bool:
    return hasattr(thing, "get_concrete_function") and callable(thing)


def _run_user_code(make: Callable[[], Any], text: str) -> Any:
    try:
        return make()
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"{text} failed: {describe_user_error(error)}") from error


def _application(spec: TargetSpec, options: CaptureOptions) -> Any:
    make = getattr(keras.applications, spec.attribute, None)
    if not callable(make):
        names = [n for n in dir(keras.applications) if n[:1].isupper()]
        close = difflib.get_close_matches(spec.attribute, names, n=3, cutoff=0.4)
        raise TargetError(
            f"keras.applications has no {spec.attribute!r}.",
            hint=f"Did you mean {' or '.join(close)}?" if close else f"It has {', '.join(names)}.",
        )
    shape = options.shapes.get("")
    extra = {"input_shape": shape} if shape else {}
    try:
        return make(weights=None, **extra)
    except tf.errors.ResourceExhaustedError:
        raise  # the weights do not fit: that is what the user came to see
    except Exception as error:
        raise TargetError(
            f"{spec.text} cannot be built: {describe_user_error(error)}",
            hint="Applications take images: --shape 224,224,3." if shape else "",
        ) from error


def _from_file(spec: TargetSpec, options: CaptureOptions) -> Any:
    path = Path(spec.path).resolve()
    # As `python file.py` would: modules beside the file can be imported.
    sys.path.insert(0, str(path.parent))
    name = _module_name(path)
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise TargetError(f"{spec.path} cannot be imported.", hint="Is it a Python file?")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except SystemExit as error:
        raise TargetError(f"{spec.path} called sys.exit({error.code}) while imported.") from None
    except Exception as error:
        raise TargetError(f"{spec.path} failed: {describe_user_error(error)}") from error
    set_keras_2_policy(options.dtype_policy)
    return _attribute(module, spec)


def _module_name(path: Path) -> str:
    """Return the name to load a file under: its own, but not that of a module that others use.

    A file of the user's may be called ``json.py``; TensorFlow must not get it for Python's.
    """
    known = sys.modules.get(path.stem)
    is_others = known is not None and getattr(known, "__file__", None) != str(path)
    return (
        f"_target_{path.stem}" if is_others or path.stem in sys.stdlib_module_names else path.stem
    )


def _from_module(spec: TargetSpec, options: CaptureOptions) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(spec.path)
    except ModuleNotFoundError as error:
        if error.name and (spec.path == error.name or spec.path.startswith(f"{error.name}.")):
            raise TargetError(
                f"There is no module {spec.path}.",
                hint="Run from the folder that holds it, or give file.py:name.",
            ) from None
        raise TargetError(f"{spec.path} failed: {describe_user_error(error)}") from error
    except SystemExit as error:
        raise TargetError(f"{spec.path} called sys.exit({error.code}) while imported.") from None
    except Exception as error:
        raise TargetError(f"{spec.path} failed: {describe_user_error(error)}") from error
    set_keras_2_policy(options.dtype_policy)
    return _attribute(module, spec)


def _attribute(module: Any, spec: TargetSpec) -> Any:
    thing = module
    for part in spec.attribute.split("."):
        if not hasattr(thing, part):
            names = [name for name in dir(module) if not name.startswith("_")]
            close = difflib.get_close_matches(part, names, n=3, cutoff=0.4)
            own = [
                name
                for name in names
                if getattr(getattr(module, name), "__module__", None) == module.__name__
            ]
            hint = f"Did you mean {' or '.join(close)}?" if close else ""
            if not hint and own:
                hint = f"It defines {', '.join(own[:8])}."
            raise TargetError(f"{spec.path} has no {part!r}.", hint=hint)
        thing = getattr(thing, part)
    return thing


def _keras_file(spec: TargetSpec, options: CaptureOptions) -> Any:
    try:
        return keras.saving.load_model(spec.path)
    except Exception as error:
        failed = describe_user_error(error)
    gc.collect()  # what was loaded before it failed; its weights would count as the step's
    # Keras writes losses and metrics into an .h5 that it cannot always read again.
    with contextlib.suppress(Exception):
        program = make_program(
            keras.saving.load_model(spec.path, compile=False), spec.text, options
        )
        program.messages.append(
            "The optimizer and loss saved with the model cannot be loaded; "
            "--optimizer and --loss decide."
        )
        return program
    raise TargetError(
        f"{spec.path} cannot be loaded: {failed}",
        hint="A model with custom objects needs its code: give file.py:name instead.",
    )


def _saved_model(spec: TargetSpec, options: CaptureOptions) -> Any:
    check_honoured(spec.path, TargetForm.SAVED_MODEL, list_given_options(options))
    if options.mode == "train":
        raise TargetError(
            f"{spec.path} is a SavedModel, which holds no training step.",
            hint="Use --mode infer, or give the model's code as file.py:name.",
        )
    try:
        loaded = tf.saved_model.load(spec.path)
    except Exception as error:
        raise TargetError(f"{spec.path} cannot be loaded: {describe_user_error(error)}") from error
    signatures = getattr(loaded, "signatures", {})
    name = "serving_default" if "serving_default" in signatures else next(iter(signatures), None)
    if name is None:
        raise TargetError(f"{spec.path} has no signature to call.", hint="Save it with one.")
    function = signatures[name]
    specs = function.structured_input_signature[1]
    check_names(list(specs), options)
    check_batch({key: _axes(tensor_spec) for key, tensor_spec in specs.items()}, options)
    tensors = {
        key: make_tensor(
            fill_axes(key, _axes(tensor_spec), options, only=len(specs) == 1), tensor_spec.dtype
        )
        for key, tensor_spec in specs.items()
    }
    first = next(iter(tensors.values()), None)
    # The loaded object owns the variables: it must live as long as the call does.
    call = _keep_alive(lambda: function(**tensors), loaded)
    return Program(
        call=call,
        args=tuple(tensors.values()),
        function=function,
        models=[_Loaded(loaded, function)],
        messages=[f"The signature {name!r} is run."],
        config=StepConfig(
            mode="infer",
            jit=False,
            batch_size=int(first.shape[0]) if first is not None and first.shape.rank else None,
        ),
    )


class _Loaded:
    """What a SavedModel holds: all its variables are loaded, and a signature may use some of them."""

    def __init__(self, loaded: Any, function: Any) -> None:
        parts = tf.train.TrackableView(loaded).descendants()
        used = {id(variable.handle) for variable in function.variables}
        found = [part for part in parts if isinstance(part, tf.Variable)]
        self.variables = [part for part in found if id(part.handle) in used]
        self.unused_variables = [part for part in found if id(part.handle) not in used]


def _keep_alive(call: Callable[[], Any], owner: Any) -> Callable[[], Any]:
    def kept() -> Any:
        kept.owner = owner  # type: ignore[attr-defined]
        return call()

    return kept


def _axes(spec: Any) -> tuple[int | None, ...] | None:
    return None if spec.shape.rank is None else tuple(spec.shape.as_list())


def _program_for_signature(function: Any, text: str, options: CaptureOptions) -> Program:
    """Return the program of a ``tf.function`` whose arguments are made up by its input signature."""
    args, elsewhere, shared = _args_of(function, text, options)
    program = _program_for_function(function, args, text, options)
    program.messages.extend(describe_shared_batch(shared))
    if elsewhere:
        program.messages.extend(describe_batch_axes(elsewhere))
        program.config = replace(program.config, batch_size=options.batch_size)
    return program


def _args_of(
    function: Any, text: str, options: CaptureOptions
) -> tuple[tuple[Any, ...], dict[str, int], list[str]]:
    """Return arguments for a ``tf.function`` from its input signature.

    And, by argument, the axis that is the batch where that is not the first; and the arguments whose
    first axis is.
    """
    signature = _signature(function)
    if signature is None:
        if _takes_nothing(function):
            return (), {}, []
        raise TargetError(
            f"{text} is a tf.function without an input signature.",
            hint="Give it input_signature=[tf.TensorSpec(...)], or return (tf_function, args).",
        )
    flat = tf.nest.flatten(signature)
    for spec in flat:
        if not isinstance(spec, tf.TensorSpec):
            raise TargetError(
                f"{text} takes a {type(spec).__name__}, which cannot be made up.",
                hint="Return (tf_function, args) with real arguments.",
            )
    names = _input_names(function, signature)
    check_names(names, options)
    axes = {name: _axes(spec) for name, spec in zip(names, flat, strict=True)}
    check_batch(axes, options)
    elsewhere = find_batch_axes(axes, options)
    filled = {
        name: fill_batch_axis(name, own, elsewhere, options.open_batch_size)
        for name, own in axes.items()
    }
    tensors = [
        make_tensor(fill_axes(name, filled[name], options, only=len(flat) == 1), spec.dtype)
        for name, spec in zip(names, flat, strict=True)
    ]
    shared = [name for name, own in axes.items() if own and own[0] is None]
    return tuple(tf.nest.pack_sequence_as(signature, tensors)), elsewhere, shared


def _input_names(function: Any, signature: Any) -> list[str]:
    """Return a name for each tensor of a signature, none twice.

    The spec's own, else that of the function's parameter, with the way to the tensor in it.
    """
    code = getattr(function, "python_function", None)
    parameters = []
    if callable(code):
        with contextlib.suppress(ValueError):
            parameters = [name for name in inspect.signature(code).parameters if name != "self"]
    names: list[str] = []
    for index, specs in enumerate(signature):
        called = parameters[index] if index < len(parameters) else f"arg{index}"
        for path, spec in _with_paths(specs, called):
            name, number = spec.name or path, 1
            while name in names:
                name, number = f"{spec.name or path}_{number}", number + 1
            names.append(name)
    return names


def _with_paths(specs: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the specs of a structure in the order of ``tf.nest.flatten``, each with its way there."""
    if isinstance(specs, Mapping):
        for key in sorted(specs):
            yield from _with_paths(specs[key], f"{path}_{key}")
    elif isinstance(specs, list | tuple):
        for index, part in enumerate(specs):
            yield from _with_paths(part, f"{path}_{index}")
    else:
        yield path, specs


def _signature(function: Any) -> Any:
    """Return the specs of a ``tf.function``'s arguments; None where it does not say them."""
    signature = getattr(function, "input_signature", None)
    if signature is None and hasattr(function, "structured_input_signature"):
        signature = function.structured_input_signature[0]
    return signature


def _takes_nothing(function: Any) -> bool:
    python_function = getattr(function, "python_function", None)
    code = getattr(python_function, "__code__", None)
    return bool(code is not None and code.co_argcount == 0)


def _program_for_function(
    function: Any, args: tuple[Any, ...], text: str, options: CaptureOptions
) -> Program:
    """Return the program of a custom step; it may carry its model and optimizer as attributes."""
    function = _with_jit(function, text, options.jit)
    # A ragged or sparse tensor comes in as the tensors that it consists of.
    parts = [x for x in tf.nest.flatten(args, expand_composites=True) if tf.is_tensor(x)]
    models = _owned(function, *_OWNERS[:2])
    optimizers = _owned(function, *_OWNERS[2:])
    for model in models:
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and all(optimizer is not known for known in optimizers):
            optimizers.append(optimizer)
    return Program(
        call=lambda: function(*args),
        args=tuple(parts),
        function=function if _is_tf_function(function) else None,
        traced_args=args,
        models=models,
        optimizers=optimizers,
        promises=[NothingCompiled(text)] if options.jit is False else [],
        config=StepConfig(
            jit=is_jit_compiled(function),
            batch_size=_batch_of(args),
            optimizer=type(optimizers[0]).__name__ if optimizers else "",
            dtype_policy=keras.config.dtype_policy().name,
        ),
    )


def _batch_of(args: Any) -> int | None:
    """Return the first axis of the first argument that has axes."""
    for thing in tf.nest.flatten(args):
        if tf.is_tensor(thing) and thing.shape.rank:
            return int(thing.shape[0])
    return None


def _met_already(args: Any, options: CaptureOptions) -> frozenset[Option]:
    """Return the options that arguments meet as they are."""
    is_met = options.batch_size is not None and options.batch_size == _batch_of(args)
    return frozenset({Option.BATCH_SIZE} if is_met else ())


def _with_jit(function: Any, text: str, jit: bool | None) -> Any:
    """Return the function made anew where it is to be compiled with XLA otherwise than it says."""
    if jit is None or not _is_tf_function(function):
        return function
    if is_jit_compiled(function) == jit:
        return function
    python_function = getattr(function, "python_function", None)
    if python_function is None:
        raise TargetError(f"{text} is already traced.", hint="Leave out --jit/--no-jit.")
    anew = tf.function(
        python_function,
        input_signature=function.input_signature,
        **get_function_options(function),
        jit_compile=jit,
    )
    attributes = getattr(function, "__dict__", {})
    for name in _OWNERS:
        if name in attributes:
            setattr(anew, name, attributes[name])
    return anew


def _owned(function: Any, *names: str) -> list[Any]:
    owned: list[Any] = []
    for name in names:
        value = getattr(function, name, None)
        if value is not None:
            owned.extend(value if isinstance(value, list | tuple) else [value])
    return owned
