"""Apply remedies: changes of the model or of its optimizer that lower the step's memory.

A remedy is written ``KIND=VALUE``; several are separated by commas:

    accumulate=4        accumulate the gradients of four batches before the optimizer applies them
    freeze=all-but-last train only the last layer with weights
    lora=8              train low-rank updates of this rank only (``enable_lora`` of Keras' layers)
    quantize=int8       quantize the weights for inference (``quantize`` of Keras' models)
    graph=function      run a custom step in a ``tf.function``
    recompute=a>b|c>d   recompute the layers from ``a`` to ``b`` and from ``c`` to ``d`` as blocks
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from analyzer.capture.private_names import (
    get_compile_arguments,
    get_layers,
    has_own_step,
)
from analyzer.capture.run.source_frames import describe_user_error
from analyzer.capture.run.wrapped_calls import wrap_calls
from analyzer.capture.targets.recomputed_blocks import recompute_blocks
from analyzer.model.errors import TargetError

_ALL_BUT_LAST = "all-but-last"

# Remedies that need the model itself.
_NEED_MODEL = frozenset({"freeze", "lora", "quantize", "recompute"})


@contextmanager
def apply_while_building(remedy: str, text: str) -> Iterator[None]:
    """Apply a remedy to the code in the block, which builds a model or a step with its optimizer."""
    parts = _split(remedy)
    if "accumulate" not in parts:
        yield
        return

    with _accumulate(int(parts["accumulate"])) as made:
        yield

    if not made:
        raise TargetError(
            f"{text} creates no Keras 3 optimizer; only these accumulate gradients."
        )


def change_step(function: Any, remedy: str, text: str) -> Any:
    """Return a custom step with a remedy, or raise a TargetError if that needs the model itself."""
    for kind, value in _split(remedy).items():
        if kind in _NEED_MODEL:
            raise TargetError(
                f"The change {kind}={value} needs the model, and {text} is a custom step.",
                "Name the model, or the function that makes it.",
            )

    return tf.function(function) if "graph" in _split(remedy) else function


@contextmanager
def _accumulate(steps: int) -> Iterator[list[str]]:
    """Let each Keras optimizer in the block accumulate gradients; yield the names of their classes."""
    made: list[str] = []

    def init(old: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        # A wrapper for loss scales has an inner optimizer that takes the option.
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            made.append(type(optimizer).__name__)
            kwargs["gradient_accumulation_steps"] = steps

        old(optimizer, *args, **kwargs)

    with wrap_calls(keras.optimizers.Optimizer, "__init__", init):
        yield made


def rebuild(model: Any, remedy: str) -> Any:
    """Return the model with recomputed blocks; the model itself if they are not asked."""
    parts = _split(remedy)
    if "recompute" not in parts:
        return model

    if not isinstance(model, keras.Model) or not model.inputs:
        raise TargetError(f"The model {model.name!r} is not made of layers in a graph.")

    if has_own_step(model):
        raise TargetError(
            f"A rebuilt {model.name!r} would lose the train_step of its own."
        )

    blocks = [block.split(">") for block in parts["recompute"].split("|")]
    try:
        rebuilt = recompute_blocks(model, blocks)
    except (ValueError, AttributeError, KeyError) as error:
        raise TargetError(
            f"The model {model.name!r} cannot be rebuilt: {describe_user_error(error)}"
        ) from error

    if model.compiled:
        rebuilt.compile(**get_compile_arguments(model))

    return rebuilt


def change_layers(model: Any, remedy: str) -> None:
    """Freeze layers, train low-rank updates, or quantize weights, before the model is compiled."""
    parts = _split(remedy)
    if "quantize" in parts:
        with warnings.catch_warnings():
            # about each layer without weights to quantize
            warnings.simplefilter("ignore")
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
    return dict(one.partition("=")[::2] for one in remedy.split(","))
