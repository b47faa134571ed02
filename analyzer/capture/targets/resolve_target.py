"""Load the object that a target names and make it a step that can be called."""

import gc
import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import get_classes, get_layers, get_own_weights
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets import target_spec
from analyzer.capture.targets.host_setup import move_to_card, run_setup_on_host
from analyzer.capture.targets.keras_step import make_model_program
from analyzer.capture.targets.model_changes import (
    apply_while_building,
    change_step,
)
from analyzer.capture.targets.step_program import (
    Program,
    check_arguments,
    find_batch_size,
    get_axes,
    get_signature,
    is_tf_function,
    make_function_program,
    make_signature_program,
)
from analyzer.capture.targets.synthetic_inputs import fill_shapes, make_tensor
from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
)
from analyzer.model.contract.child_messages import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import USAGE_STATUS, InputError, TargetError, suggest_names


def resolve(spec: TargetSpec, options: CaptureOptions) -> Program:
    """Return the step that ``spec`` names; InputError for an option that it cannot honour."""
    if options.dtype_policy:
        try:
            # of all layers made from now on
            keras.config.set_dtype_policy(options.dtype_policy)
        except ValueError:
            raise TargetError(
                f"Keras has no dtype policy {options.dtype_policy!r}.",
                "Try float32, mixed_float16 or mixed_bfloat16.",
            ) from None

    with apply_while_building(options.remedy, spec.text):
        program = make_program(_load(spec, options), spec.text, options)

    program.config = replace(program.config, options=target_spec.write_options(options))
    if options.dtype_policy:
        _check_policy(program, spec.text, options.dtype_policy)

    return program


def _load(spec: TargetSpec, options: CaptureOptions) -> Any:
    match spec.kind:
        case TargetKind.APPLICATION:
            return _load_application(spec, options)
        case TargetKind.PRESET:
            return _load_preset(spec)
        case TargetKind.KERAS_FILE:
            return _load_keras_file(spec, options)
        case TargetKind.SAVED_MODEL:
            return _load_saved_model(spec, options)

    return _load_from_code(spec)


def make_program(
    thing: Any,
    text: str,
    options: CaptureOptions,
    *,
    is_result: bool = False,
) -> Program:
    """Return the step of a model, a ``tf.function``, ``(function, args)``, or a function that makes one.

    A plain function that was returned by the user's function (``is_result``) is not called.
    """
    if isinstance(thing, Program):
        return thing
    if isinstance(thing, keras.Model):
        return make_model_program(thing, options)

    is_class = isinstance(thing, type) and issubclass(thing, keras.Model)
    is_pair = isinstance(thing, tuple | list) and len(thing) == 2

    if is_pair and callable(thing[0]) and not _lacks_tensors(thing):
        function = change_step(thing[0], options.remedy, text)
        args = thing[1] if isinstance(thing[1], tuple | list) else (thing[1],)
        args = move_to_card(args)
        check_arguments(function, args, text, options)

        return make_function_program(function, tuple(args), text, options)

    if is_tf_function(thing):
        change_step(thing, options.remedy, text)
        takes_inputs = tf.nest.flatten(get_signature(thing))
        form = TargetForm.SIGNATURE if takes_inputs else TargetForm.STEP
        check_honoured(text, form, options)

        return make_signature_program(thing, text, options)

    if isinstance(thing, get_classes("layers.Layer")):
        raise TargetError(
            f"{text} is a layer or a model of Keras 2 (tf_keras), not a model of Keras 3.",
            "Wrap a layer in keras.Sequential; trace the script that trains a model of Keras 2, "
            "or return (tf_function, args).",
        )

    if callable(thing) and (is_class or not is_result):
        return make_program(_call_user_code(thing, text), text, options, is_result=True)

    raise TargetError(
        f"{text} is of the type {type(thing).__name__}, not a model or a step.",
        "Give a Keras model, a tf.function, or a function that returns a model or (tf_function, "
        "args).",
    )


def _lacks_tensors(pair: Any) -> bool:
    """Say whether a pair holds a model without tensors for it."""
    rest = tf.nest.flatten(pair[1])
    is_model = isinstance(pair[0], keras.Model)

    return is_model and not any(hasattr(one, "shape") for one in rest)


_ONLY_BUILD = "Name a function that only builds the model or the step."
_NO_ARGUMENTS = (
    "An imported file gets no arguments: give them defaults, or parse them "
    "under if __name__ == '__main__'."
)
_SIGNATURE = "Save it with one: model.export(FOLDER), or tf.saved_model.save(…)."


def _call_user_code(make: Callable[[], Any], text: str) -> Any:
    with suppress(ValueError):  # no signature is known
        try:
            inspect.signature(make).bind()
        except TypeError as error:
            raise TargetError(
                f"{text} cannot be called: {error}.",
                "Name a function without parameters: it returns a model or (step, arguments).",
            ) from None

    with _convert_errors(text), run_setup_on_host():
        return make()


@contextmanager
def _convert_errors(text: str) -> Iterator[None]:
    try:
        yield
    except TargetError:
        raise
    except SystemExit as error:
        raise TargetError(
            f"{text} called sys.exit({error.code}).",
            _NO_ARGUMENTS if error.code == USAGE_STATUS else _ONLY_BUILD,
        ) from None
    except Exception as error:
        hint = "Correct this line of your code."
        if isinstance(error, OSError | EOFError | tf.errors.NotFoundError):
            hint = f"No data is needed. {_ONLY_BUILD}"
        # A missing module of a package is of another version.
        elif isinstance(error, ModuleNotFoundError) and "." not in str(error.name):
            hint = f"Start analyze in its folder, or pip install {error.name} (for {sys.executable})."

        raise TargetError(
            f"{text} failed: {describe_user_error(error)}.",
            hint,
        ) from error


def _check_policy(program: Program, text: str, policy: str) -> None:
    """Refuse a target if no layer with weights follows the policy: its code or file sets another."""
    layers: list[Any] = []
    for model in program.models:
        layers += get_layers(model)

    policies = {
        str(layer.dtype_policy.name)
        for layer in layers or find_live_objects(keras.Layer)
        if get_own_weights(layer)
    }

    if policy not in policies:
        found = ", ".join(sorted(policies))

        own = "it has no Keras layers"
        if found:
            own = f"its layers follow {found}"

        raise InputError(
            f"{text} does not follow --dtype-policy {policy}: {own}.",
            "Leave it out, and set the policy in the target's code.",
        )


def _load_application(spec: TargetSpec, options: CaptureOptions) -> Any:
    make = getattr(keras.applications, spec.attribute, None)
    if not callable(make):
        names = [name for name in dir(keras.applications) if name[:1].isupper()]
        hint = suggest_names(spec.attribute, names) or f"It has {', '.join(names)}."
        raise TargetError(f"keras.applications has no {spec.attribute!r}.", hint)

    arguments: dict[str, Any] = {"weights": None}
    hint = ""

    if "" in options.shapes:
        arguments["input_shape"] = options.shapes[""]
        hint = "Applications take images: --shape 224,224,3."

    with _convert_building(spec, hint):
        return make(**arguments)


def _load_preset(spec: TargetSpec) -> Any:
    """Return the language model of a keras-hub preset, else its backbone: its config, no weights."""
    try:
        import keras_hub
    except ImportError as error:
        hint = "Install it: pip install keras-hub."
        raise TargetError(
            f"{spec.text} needs keras-hub: {error}.",
            hint,
        ) from error

    models = keras_hub.models
    known = keras_hub.models.Backbone.presets
    is_known = "://" in spec.path or spec.path in known

    if not is_known and not Path(spec.path).is_dir():
        hint = suggest_names(spec.path, known) or "Give a folder: hub:FOLDER."
        raise TargetError(f"keras-hub has no preset {spec.path!r}.", hint)

    hint = "It needs the preset's config.json: from the network, or from a folder (hub:FOLDER)."
    with _convert_building(spec, hint):
        backbone = models.Backbone.from_preset(spec.path, load_weights=False)
        kinds = _list_subclasses(models.CausalLM)
        tasks = [kind for kind in kinds if kind.backbone_cls is type(backbone)]

        if tasks:
            return tasks[0](backbone=backbone, preprocessor=None)

        return backbone


def _list_subclasses(kind: Any) -> list[Any]:
    found = []
    for sub in kind.__subclasses__():
        found += [sub, *_list_subclasses(sub)]

    return found


@contextmanager
def _convert_building(spec: TargetSpec, hint: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError:
        raise  # the weights do not fit: the result that the user asked for
    except Exception as error:
        reason = describe_user_error(error)

        # of the network: with addresses and all attempts
        if isinstance(error, OSError):
            reason = f"its config cannot be fetched ({type(error).__name__})."

        raise TargetError(
            f"{spec.text} cannot be built: {reason.rstrip('.')}.", hint
        ) from error


def _load_from_code(spec: TargetSpec) -> Any:
    with _convert_errors(spec.path), run_setup_on_host():
        load = _import_file if spec.kind is TargetKind.FILE else _import_module
        module = load(spec)

    thing = module
    for part in spec.attribute.split("."):
        if not hasattr(thing, part):
            own = [name for name in sorted(vars(module)) if name[0] != "_"]
            hint = suggest_names(part, own) or f"It defines {', '.join(own[:9])}."
            raise TargetError(f"{spec.path} has no {part!r}.", hint)

        thing = getattr(thing, part)

    return thing


def _import_file(spec: TargetSpec) -> Any:
    """Import a file under its own name, unless another module has it.

    A file of the user may be called ``json.py``; TensorFlow must not import it instead of Python's.
    """
    path = Path(spec.path).resolve()

    # As with `python file.py`, modules in the same folder can be imported.
    sys.path.insert(0, str(path.parent))
    known = sys.modules.get(path.stem)
    is_taken = known is not None and getattr(known, "__file__", None) != str(path)
    is_taken = is_taken or path.stem in sys.stdlib_module_names
    name = f"_target_{path.stem}" if is_taken else path.stem
    module_spec = importlib.util.spec_from_file_location(name, path)

    if module_spec is None or module_spec.loader is None:
        raise TargetError(
            f"{spec.path} cannot be imported.",
            "Is it a Python file?",
        )

    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)

    return module


def _import_module(spec: TargetSpec) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(spec.path)
    except ModuleNotFoundError as error:
        if not f"{spec.path}.".startswith(f"{error.name}."):
            raise

        raise TargetError(
            f"There is no module {spec.path}.",
            "Install it, run from the folder that holds it, or give file.py:name.",
        ) from None


def _load_keras_file(spec: TargetSpec, options: CaptureOptions) -> Any:
    if spec.path.endswith(".keras") and not zipfile.is_zipfile(spec.path):
        raise TargetError(
            f"{spec.path} is damaged: it is no archive.",
            "Save the model again.",
        )

    try:
        return keras.saving.load_model(spec.path)
    except Exception as error:
        reason = describe_user_error(error)

    gc.collect()  # the weights of the failed attempt would count as the step's

    # Keras writes losses and metrics into an .h5 file that it cannot always read again.
    with suppress(Exception):
        model = keras.saving.load_model(spec.path, compile=False)
        program = make_program(model, spec.text, options)
        program.messages.append(
            "The optimizer and loss saved with the model cannot be loaded; "
            "--optimizer and --loss decide."
        )

        return program

    raise TargetError(
        f"{spec.path} cannot be loaded: {reason.rstrip('.')}.",
        "If it holds only weights, or custom objects, name the code of the model: file.py:name.",
    )


class _LoadedModel:
    """The variables of a SavedModel: all are loaded, and a signature may use some of them."""

    def __init__(self, loaded: Any, function: Any) -> None:
        # owns the variables, so it must live as long as the program
        self.loaded = loaded
        self.variables: list[Any] = []
        self.unused_variables: list[Any] = []
        used = {id(variable.handle) for variable in function.variables}

        for part in tf.train.TrackableView(loaded).descendants():
            if isinstance(part, tf.Variable):
                is_used = id(part.handle) in used
                (self.variables if is_used else self.unused_variables).append(part)


def _load_saved_model(spec: TargetSpec, options: CaptureOptions) -> Any:
    check_honoured(spec.path, TargetForm.SAVED_MODEL, options)
    if options.mode not in ("", "infer"):
        raise TargetError(
            f"{spec.path} is a SavedModel, which holds no training step.",
            "Use --mode infer, or give the model's code as file.py:name.",
        )

    try:
        loaded = tf.saved_model.load(spec.path)
    except Exception as error:
        raise TargetError(
            f"{spec.path} cannot be loaded: {describe_user_error(error)}"
        ) from error

    signatures = getattr(loaded, "signatures", {})
    name = (
        "serving_default"
        if "serving_default" in signatures
        else next(iter(signatures), None)
    )

    if name is None:
        raise TargetError(f"{spec.path} has no signature to call.", _SIGNATURE)

    function = signatures[name]
    specs = function.structured_input_signature[1]
    shapes = fill_shapes({name: get_axes(one) for name, one in specs.items()}, options)
    tensors = {
        name: make_tensor(shapes[name], one.dtype) for name, one in specs.items()
    }

    return Program(
        call=lambda: function(**tensors),
        args=tuple(tensors.values()),
        function=function,
        models=[_LoadedModel(loaded, function)],
        messages=[f"The signature {name!r} is run."],
        config=StepConfig(
            mode="infer",
            jit=False,
            batch_size=find_batch_size(tensors),
        ),
    )
