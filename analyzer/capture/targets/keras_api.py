"""Questions about Keras' models and optimizers that its public API does not answer.

A model of Keras 2 (``tf_keras``) is no target, but a script or a step may use one. It is never imported
here: if the user's code has not imported it, no object belongs to it.
"""

import operator
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import keras

from analyzer.capture import private_names

_KERAS_2 = "tf_keras"


def has_own_step(model: Any) -> bool:
    """Say whether a model's code has a training step of its own."""
    return type(model).train_step is not keras.Model.train_step


def get_input_specs(model: Any) -> Any:
    """Return symbolic inputs in the structure that the model takes; None if unknown."""
    structure = private_names.get_input_structure(model)
    inputs = getattr(model, "inputs", None)

    if structure is None and inputs:
        structure = inputs if len(inputs) > 1 else inputs[0]

    return structure


def get_classes(path: str) -> tuple[type, ...]:
    """Return the class with a dotted name, such as ``layers.Layer``, in each imported Keras."""
    classes = []
    for package in (keras, sys.modules.get(_KERAS_2)):
        with suppress(AttributeError):
            classes.append(operator.attrgetter(path)(package))

    return tuple(classes)


def get_variables(owner: Any) -> list[Any]:
    """Return the variables of an owner; in Keras 2's legacy optimizers they are a method."""
    variables = owner.variables
    return list(variables() if callable(variables) else variables)


def find_open_optimizers(program: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield unbuilt optimizers that a step is known to apply to all weights of its model, and those."""
    for model in program.models if program.config.mode == "train" else ():
        optimizer = model.optimizer
        is_open = (
            isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built
        )

        if (
            is_open
            and not has_own_step(model)
            and not private_names.is_distributed(model)
        ):
            yield optimizer, list(model.trainable_variables)
