"""A remedy as a change of the model itself: what is captured is the remedied step.

A remedy is written ``KIND=VALUE``, several with a comma between:

    accumulate=4        gradients of four batches are added up before the optimizer applies them
    freeze=all-but-last every layer but the last one with weights is not trained
    remat=full          ``keras.RematScope`` around the code that makes the model
    ema=off, ema=on     the optimizer's moving average of the weights
    clip=off, clip=on   the optimizer's clipping of gradients
    recompute=a>b|c>d   the layers from ``a`` to ``b`` and from ``c`` to ``d`` recomputed as blocks
    optimizer=sgd       another optimizer, for a step of the user's own
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import keras

from analyzer.capture.private_names import get_compile_arguments, get_layers
from analyzer.capture.remedies.recomputed_blocks import recomputed
from analyzer.capture.remedies.replaced_optimizers import replace_optimizers
from analyzer.model.errors import TargetError

_EVERY: Final = "all-but-last"
_CLIPPING: Final = ("clipnorm", "clipvalue", "global_clipnorm")


_OF_MODELS: Final = {
    ("freeze", _EVERY): "Layers can be frozen",
    ("recompute", ""): "Blocks of layers can be recomputed",
    ("ema", "off"): "The moving average can be left out",
    ("clip", "off"): "Clipping can be left out",
}
"""Changes that need the model itself: kind, value (any where empty), what cannot be done otherwise."""

_OF_OPTIMIZERS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("ema", "on"): {"use_ema": True},
    ("clip", "on"): {**dict.fromkeys(_CLIPPING), "global_clipnorm": 1.0},
}
"""Options of an optimizer that is made anew with them."""


@contextlib.contextmanager
def apply_while_building(remedy: str, text: str) -> Iterator[None]:
    """Be in the block what the code that makes a model or a step must be run in.

    A step of the user's own holds its optimizer where it likes, so what the optimizer is to be made with
    it is given where it is made.

    Args:
        remedy: The changes.
        text: What the user named, for errors.

    Raises:
        TargetError: this Keras has no such scope, or no optimizer was made that could take an option.
    """
    mode = _parts(remedy).get("remat")
    scope: Any = contextlib.nullcontext()
    if mode is not None:
        made = getattr(keras, "RematScope", None)
        if made is None:
            raise TargetError("This Keras has no RematScope.", hint="Keras 3.9 and later have one.")
        scope = made(mode=mode)
    options = _options_of(remedy)
    other = _parts(remedy).get("optimizer")
    replacing = contextlib.nullcontext([""]) if other is None else replace_optimizers(other)
    with scope, replacing as replaced, _optimizers_with(options) as optimizers:
        yield
    if not replaced:
        raise TargetError(f"{text} makes no other optimizer of Keras 3.")
    if options and not optimizers:
        raise TargetError(
            f"{text} makes no optimizer of Keras 3, which alone takes {', '.join(options)}."
        )


def check_step_remedy(remedy: str, text: str) -> None:
    """Refuse what can be done to a model alone, for a step of the user's own.

    Raises:
        TargetError: the remedy has such a change.
    """
    parts = _parts(remedy)
    for (kind, value), what in _OF_MODELS.items():
        if kind in parts and value in ("", parts[kind]):
            raise TargetError(
                f"{text} is a step of its own, which holds its model where it likes. {what} where the "
                "target is the model itself.",
                hint="Name the model, or the function that makes it.",
            )


@contextlib.contextmanager
def _optimizers_with(options: dict[str, Any]) -> Iterator[list[Any]]:
    """Let each optimizer of Keras that is made in the block be made with options; give those made."""
    made: list[Any] = []
    base = keras.optimizers.Optimizer
    old = base.__init__

    @functools.wraps(old)
    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            old(self, *args, **kwargs)  # around another one, which alone takes options
            return
        made.append(self)
        old(self, *args, **{**kwargs, **options})

    with patch.object(base, "__init__", changed) if options else contextlib.nullcontext():
        yield made


def _options_of(remedy: str) -> dict[str, Any]:
    """Return the options that a remedy has an optimizer made with."""
    parts = _parts(remedy)
    options: dict[str, Any] = {}
    if "accumulate" in parts:
        options["gradient_accumulation_steps"] = int(parts["accumulate"])
    for (kind, value), changes in _OF_OPTIMIZERS.items():
        if parts.get(kind) == value:
            options |= changes
    return options


def rebuild_with_blocks(model: Any, remedy: str) -> Any:
    """Return the model with blocks that are recomputed; the model itself where none are asked for.

    Raises:
        TargetError: it is no chain of layers that could be taken apart.
    """
    asked = _parts(remedy).get("recompute")
    if asked is None:
        return model
    blocks = [block.split(">") for block in asked.split("|")]
    if not isinstance(model, keras.Model) or not model.inputs:
        raise TargetError(f"The model {model.name!r} is not made of layers in a graph.")
    if type(model).train_step is not keras.Model.train_step:
        raise TargetError(
            f"The model {model.name!r} has a train_step of its own, which a model that is put together "
            "anew of its layers would not have."
        )
    try:
        made = recomputed(model, blocks)
    except (ValueError, AttributeError, KeyError) as error:
        raise TargetError(f"The model {model.name!r} cannot be taken apart: {error}") from error
    if model.compiled:
        made.compile(**get_compile_arguments(model))
    return made


def change_layers(model: Any, remedy: str) -> None:
    """Change the model's layers before it is compiled.

    Raises:
        TargetError: it has no two layers with weights.
    """
    if _parts(remedy).get("freeze") != _EVERY:
        return
    layers = get_layers(model, include_self=False, recursive=False)
    weighted = [layer for layer in layers if layer.trainable_variables]
    if len(weighted) < 2:
        raise TargetError(f"The model {model.name!r} has no two layers with weights to train.")
    for layer in weighted[:-1]:
        layer.trainable = False


def change_optimizer(model: Any, remedy: str) -> None:
    """Change the compiled model's optimizer.

    Raises:
        TargetError: the optimizer takes no such option.
    """
    parts = _parts(remedy)
    changes = _options_of(remedy)
    if parts.get("ema") == "off":
        changes["use_ema"] = False
    if parts.get("clip") == "off":
        changes |= dict.fromkeys(_CLIPPING)
    if not changes:
        return
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TargetError("Only an optimizer of Keras 3 takes such an option.")
    inner = getattr(optimizer, "inner_optimizer", None)
    clipped = inner if inner is not None else optimizer
    if parts.get("clip") == "off" and all(getattr(clipped, n, None) is None for n in _CLIPPING):
        raise TargetError(f"The optimizer {type(clipped).__name__} clips no gradients.")
    changed = _with(inner if inner is not None else optimizer, changes)
    if inner is not None:
        config = {key: v for key, v in optimizer.get_config().items() if key != "inner_optimizer"}
        changed = type(optimizer)(changed, **_kept(config))
    model.optimizer = changed


def _parts(remedy: str) -> dict[str, str]:
    """Return a remedy's values by kind."""
    return {kind: value for kind, _, value in (one.partition("=") for one in remedy.split(","))}


def _with(optimizer: Any, changes: dict[str, Any]) -> Any:
    try:
        return type(optimizer).from_config({**optimizer.get_config(), **changes})
    except (TypeError, ValueError) as error:
        raise TargetError(
            f"The optimizer {type(optimizer).__name__} takes no {', '.join(changes)}: {error}"
        ) from error


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("initial_scale", "dynamic_growth_steps") if key in config}
