"""A remedy as a change of the model itself: what is captured is the remedied step.

A remedy is written ``KIND=VALUE``, several with a comma between:

    accumulate=4        gradients of four batches are added up before the optimizer applies them
    freeze=all-but-last every layer but the last one with weights is not trained
    remat=full          ``keras.RematScope`` around the code that makes the model
    ema=off, ema=on     the optimizer's moving average of the weights
    clip=off, clip=on   the optimizer's clipping of gradients
    recompute=a>b|c>d   the layers from ``a`` to ``b`` and from ``c`` to ``d`` recomputed as blocks
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import keras

from analyzer.capture.private_names import compile_arguments, layers_of
from analyzer.capture.remedies.recomputed_blocks import recomputed
from analyzer.errors import TargetError

_EVERY: Final = "all-but-last"
_CLIPPING: Final = ("clipnorm", "clipvalue", "global_clipnorm")


@contextlib.contextmanager
def around_making(remedy: str) -> Iterator[None]:
    """Be in the block what the code that makes a model must be run in.

    Raises:
        TargetError: this Keras has no such scope.
    """
    value = _parts(remedy).get("remat")
    if value is None:
        yield
        return
    scope = getattr(keras, "RematScope", None)
    if scope is None:
        raise TargetError("This Keras has no RematScope.", hint="Keras 3.9 and later have one.")
    with scope(mode=value):
        yield


def rebuilt(model: Any, remedy: str) -> Any:
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
    try:
        made = recomputed(model, blocks)
    except (ValueError, AttributeError, KeyError) as error:
        raise TargetError(f"The model {model.name!r} cannot be taken apart: {error}") from error
    if model.compiled:
        made.compile(**compile_arguments(model))
    return made


def change_layers(model: Any, remedy: str) -> None:
    """Change the model's layers before it is compiled.

    Raises:
        TargetError: it has no two layers with weights.
    """
    if _parts(remedy).get("freeze") != _EVERY:
        return
    layers = layers_of(model, include_self=False, recursive=False)
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
    changes: dict[str, Any] = {}
    if "accumulate" in parts:
        changes["gradient_accumulation_steps"] = int(parts["accumulate"])
    if "ema" in parts:
        changes["use_ema"] = parts["ema"] == "on"
    if "clip" in parts:
        changes |= dict.fromkeys(_CLIPPING)
        if parts["clip"] == "on":
            changes["global_clipnorm"] = 1.0
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
