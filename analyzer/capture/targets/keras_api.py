"""One interface to models of Keras 3 and of Keras 2 (``tf_keras``).

Keras 2 is optional and never imported here: if the target has not imported it, no object belongs to it.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from analyzer.capture import private_names

_KERAS_2 = "tf_keras"


def is_keras_3(model: Any) -> bool:
    """Say whether a model is one of Keras 3; otherwise it is one of Keras 2."""
    return isinstance(model, keras.Model)


def get_keras(model: Any) -> Any:
    """Return the package of a model, with ``losses``, ``optimizers`` and ``Model``."""
    return keras if is_keras_3(model) else sys.modules[_KERAS_2]


def has_own_step(model: Any) -> bool:
    """Say whether a model's code has a training step of its own."""
    return type(model).train_step is not get_keras(model).Model.train_step


def is_compiled(model: Any) -> bool:
    """Say whether the model has an optimizer and a loss."""
    if is_keras_3(model):
        return bool(model.compiled)

    return bool(private_names.keras_2_is_compiled(model))


def get_input_specs(model: Any) -> Any:
    """Return symbolic inputs in the structure that the model takes; None if unknown."""
    structure = private_names.get_input_structure(model)
    inputs = getattr(model, "inputs", None)
    if structure is None and inputs:
        structure = inputs if len(inputs) > 1 else inputs[0]

    if structure is None or is_keras_3(model):
        return structure

    return tf.nest.map_structure(_convert_spec, structure)


def get_output_tensors(model: Any) -> Any:
    """Return the symbolic outputs of a functional model; None for others."""
    structure = private_names.get_output_structure(model)
    return structure if structure is not None else getattr(model, "outputs", None)


def get_classes(path: str) -> tuple[type, ...]:
    """Return the class with a dotted name, such as ``layers.Layer``, in each imported Keras."""
    classes = []
    for package in (keras, sys.modules.get(_KERAS_2)):
        with contextlib.suppress(AttributeError):
            classes.append(operator.attrgetter(path)(package))

    return tuple(classes)


def get_optimizer_classes() -> tuple[type, ...]:
    """Return the base classes of optimizers; Keras 2 has two generations."""
    return (
        *get_classes("optimizers.Optimizer"),
        *get_classes("optimizers.legacy.Optimizer"),
    )


def get_optimizer_variables(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables; in Keras 2's legacy optimizers they are a method."""
    variables = optimizer.variables
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


def set_keras_2_policy(policy: str) -> None:
    """Set the global dtype policy of Keras 2 if one is given and the target has imported Keras 2."""
    if policy and _KERAS_2 in sys.modules:
        sys.modules[_KERAS_2].mixed_precision.set_global_policy(policy)


def _convert_spec(tensor: Any) -> Any:
    spec = getattr(tensor, "type_spec", tensor)
    axes = spec.shape.as_list() if spec.shape.rank is not None else None
    if axes and spec is tensor:  # of a call with some batch
        axes[0] = None

    return keras.KerasTensor(
        axes,
        dtype=spec.dtype.name,
        name=str(tensor.name),
        sparse=isinstance(spec, tf.SparseTensorSpec),
        ragged=isinstance(spec, tf.RaggedTensorSpec),
    )
