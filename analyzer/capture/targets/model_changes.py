"""Apply remedies: changes of the model or of its optimizer that lower the step's memory.

A remedy is written ``KIND=VALUE``; several are separated by commas:

    accumulate=4        accumulate the gradients of four batches before the optimizer applies them
    freeze=all-but-last train only the last layer with weights
    lora=8              train low-rank updates of this rank only (``enable_lora`` of Keras' layers)
    quantize=int8       quantize the weights for inference (``quantize`` of Keras' models)
    remat=full          run the code that builds the model in ``keras.RematScope`` of this mode
    remat=list_of_layers>a|b    the same for the layers ``a`` and ``b``
    ema=off, ema=on     the optimizer's moving average of the weights
    clip=off, clip=on   the optimizer's gradient clipping
    recompute=a>b|c>d   recompute the layers from ``a`` to ``b`` and from ``c`` to ``d`` as blocks
    units=0.5           half the units and filters in each layer but the last of each output
    optimizer=sgd       another optimizer, for a custom step
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import patch

import keras

from analyzer.capture.private_names import (
    forget_kernel,
    get_compile_arguments,
    get_layers,
)
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.targets.recomputed_blocks import recompute_blocks
from analyzer.model.errors import TargetError

_ALL_BUT_LAST: Final = "all-but-last"
_CLIPPING: Final = ("clipnorm", "clipvalue", "global_clipnorm")
_NEED_MODEL: Final = {
    **dict.fromkeys(("freeze", "lora", "quantize", "recompute", "units"), ""),
    **dict.fromkeys(("ema", "clip"), "off"),
}
"""Remedies that need the model itself: kind -> value, or empty for any."""
_OPTIMIZER_OPTIONS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("ema", "on"): {"use_ema": True},
    ("ema", "off"): {"use_ema": False},
    ("clip", "on"): {**dict.fromkeys(_CLIPPING), "global_clipnorm": 1.0},
    ("clip", "off"): dict.fromkeys(_CLIPPING),
}
"""Remedies that set options of the optimizer."""
_COMMON_OPTIONS: Final = frozenset(
    {"learning_rate", "weight_decay", *_CLIPPING, "use_ema", "ema_momentum"}
    | {"ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"}
)
"""Options that every optimizer takes: a replaced optimizer keeps them."""
_SIZES: Final = {"units", "filters", "output_dim"}
"""Arguments of Keras' layers that are a width of the model."""
_WRAPPERS: Final = frozenset({"Optimizer", "LossScaleOptimizer", "MultiOptimizer"})
"""Optimizer classes without slots of their own."""


@contextlib.contextmanager
def apply_while_building(remedy: str, text: str) -> Iterator[None]:
    """Apply a remedy to the code in the block, which builds a model or a step with its optimizer."""
    parts = _split(remedy)
    options = _get_options(parts)
    replaced = [""]
    with contextlib.ExitStack() as stack:
        if "remat" in parts:
            mode, _, names = parts["remat"].partition(">")
            layers = {"layer_names": names.split("|")} if names else {}
            stack.enter_context(keras.RematScope(mode=mode, **layers))
        if "optimizer" in parts:
            replaced = stack.enter_context(_replace_optimizers(parts["optimizer"]))
        optimizers = stack.enter_context(_set_options(options))
        yield
    if not replaced:
        raise TargetError(f"{text} creates no Keras 3 optimizer that can be replaced.")
    if options and not optimizers:
        raise TargetError(
            f"{text} creates no Keras 3 optimizer; only these accept {', '.join(options)}."
        )
    given: set[str] = set()
    for one in optimizers:
        given.update(name for name, value in one.items() if value is not None)
    if parts.get("clip") == "off" and given.isdisjoint(_CLIPPING):
        raise TargetError(f"The optimizer of {text} clips no gradients.")


def check_step_remedy(remedy: str, text: str) -> None:
    """Raise TargetError if a remedy needs the model itself; for a custom step."""
    for kind, value in _split(remedy).items():
        if _NEED_MODEL.get(kind) in ("", value):
            raise TargetError(
                f"The change {kind}={value} needs the model, and {text} is a custom step.",
                hint="Name the model, or the function that makes it.",
            )


@contextlib.contextmanager
def _set_options(options: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Make each Keras optimizer in the block with these options; yield the replaced options of each."""
    optimizers: list[dict[str, Any]] = []
    base = keras.optimizers.Optimizer
    old = base.__init__

    @functools.wraps(old)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            old(self, *args, **kwargs)  # its inner optimizer takes the options
        else:
            optimizers.append(kwargs)
            old(self, *args, **{**kwargs, **options})

    with contextlib.ExitStack() as stack:
        if options:
            stack.enter_context(patch.object(base, "__init__", init))
        yield optimizers


@contextlib.contextmanager
def _replace_optimizers(name: str) -> Iterator[list[str]]:
    """Make Keras' optimizers in the block instances of another class; yield the replaced classes."""
    classes = {
        kind.__name__.lower(): kind
        for kind in vars(keras.optimizers).values()
        if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
        if kind.__name__ not in _WRAPPERS and "__init__" in vars(kind)
    }
    if name not in classes:
        raise TargetError(f"Keras has no optimizer {name!r}.")
    replaced: list[str] = []
    make: Any = vars(classes[name])["__init__"]

    def make_init(kind: Any, old: Any) -> Callable[..., None]:
        def init(self: Any, *args: Any, **options: Any) -> None:
            if type(self) is not kind or kind is classes[name]:  # called by a subclass
                old(self, *args, **options)
                return
            replaced.append(kind.__name__)
            if args:
                options["learning_rate"] = args[0]
            object.__setattr__(
                self, "__class__", classes[name]
            )  # Keras tracks plain assignments
            make(
                self, **{key: options[key] for key in options.keys() & _COMMON_OPTIONS}
            )

        return init

    with contextlib.ExitStack() as stack:
        for kind in classes.values():
            init = make_init(kind, vars(kind)["__init__"])
            stack.enter_context(patch.object(kind, "__init__", init))
        yield replaced


def rebuild(model: Any, remedy: str) -> Any:
    """Return the model with recomputed blocks or fewer units; the model itself if neither is asked."""
    parts = _split(remedy)
    if not parts.keys() & {"recompute", "units"}:
        return model
    if not isinstance(model, keras.Model) or not model.inputs:
        raise TargetError(f"The model {model.name!r} is not made of layers in a graph.")
    if type(model).train_step is not keras.Model.train_step:
        raise TargetError(
            f"A rebuilt {model.name!r} would lose the train_step of its own."
        )
    try:
        rebuilt = (
            _scale_units(model, float(parts["units"])) if "units" in parts else model
        )
        if "recompute" in parts:
            blocks = [block.split(">") for block in parts["recompute"].split("|")]
            rebuilt = recompute_blocks(rebuilt, blocks)
    except (ValueError, AttributeError, KeyError) as error:
        reason = describe_user_error(error)
        raise TargetError(
            f"The model {model.name!r} cannot be rebuilt: {reason}"
        ) from error
    if model.compiled:
        rebuilt.compile(**get_compile_arguments(model))
    return rebuilt


def _scale_units(model: Any, factor: float) -> Any:
    """Return a copy with fewer units in each layer, except the last with units of each output."""
    layers = get_layers(model, include_self=False)
    sized = [layer for layer in layers if _SIZES & layer.get_config().keys()]
    kept = set()
    for name in getattr(model, "output_names", None) or [model.layers[-1].name]:
        inner = get_layers(model.get_layer(name))[-1]
        until = layers.index(inner) + 1
        before = [layer.name for layer in layers[:until] if layer in sized]
        kept.update(before[-1:])
    if len(sized) <= len(kept):
        raise ValueError("no layer before the last one has units or filters")

    def copy(layer: Any) -> Any:
        config = layer.get_config()
        if layer.name not in kept:
            for key in _SIZES & config.keys():
                config[key] = max(int(config[key] * factor), 1)
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=copy, recursive=True)


def change_layers(model: Any, remedy: str) -> None:
    """Freeze layers, train low-rank updates, or quantize weights, before the model is compiled."""
    parts = _split(remedy)
    if parts.get("quantize") == "gptq":
        _quantize_after_calibration(model)
    elif "quantize" in parts:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about each layer without weights to quantize
            model.quantize(parts["quantize"])
    if "lora" in parts:
        _train_low_rank(model, int(parts["lora"]))
    if parts.get("freeze") != _ALL_BUT_LAST:
        return
    layers = get_layers(model, include_self=False, recursive=False)
    weighted = [layer for layer in layers if layer.trainable_variables]
    if len(weighted) < 2:
        raise TargetError(
            f"The model {model.name!r} has fewer than two layers with weights."
        )
    for layer in weighted[:-1]:
        layer.trainable = False


def _quantize_after_calibration(model: Any) -> None:
    """Give layers the weights that they have after ``quantize("gptq")``, without calibration data.

    The calibration replaces the kernel of each ``Dense`` and ``EinsumDense`` of the structure's blocks
    (``gptq.py``: ``GPTQ.quantize_and_correct_layer``).
    """
    make = getattr(keras.quantizers, "GPTQConfig", None)
    if make is None:
        raise TargetError(
            f"Keras {keras.__version__} has no GPTQ.", hint="Keras 3.13 has it."
        )
    structure = getattr(model, "get_quantization_layer_structure", lambda mode: None)(
        "gptq"
    )
    if not structure:
        raise TargetError(
            f"The model {model.name!r} names no blocks to quantize.",
            hint="GPTQ needs its get_quantization_layer_structure(), as keras-hub's models have it.",
        )
    for block in structure["sequential_blocks"]:
        for layer in get_layers(block):
            if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense):
                layer.quantize("gptq", config=make(dataset=None, tokenizer=None))
                forget_kernel(layer)
                layer.is_gptq_calibrated = True


def _train_low_rank(model: Any, rank: int) -> None:
    """Freeze the model, and give each layer that supports it low-rank updates to train."""
    layers = get_layers(model, include_self=False, recursive=True)
    able = [
        one for one in layers if hasattr(one, "enable_lora") and one.trainable_variables
    ]
    if not able:
        raise TargetError(f"No layer of the model {model.name!r} has enable_lora.")
    for layer in layers:
        layer.trainable = False
    for layer in able:
        layer.trainable = True
        layer.enable_lora(rank)


def _split(remedy: str) -> dict[str, str]:
    parts = {}
    for one in remedy.split(","):
        kind, _, value = one.partition("=")
        parts[kind] = value
    return parts


def _get_options(parts: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "accumulate" in parts:
        options["gradient_accumulation_steps"] = int(parts["accumulate"])
    for remedy in parts.items():
        options |= _OPTIMIZER_OPTIONS.get(remedy, {})
    return options
