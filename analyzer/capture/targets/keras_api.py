"""What differs between Keras and Keras 2 (``tf_keras``) for whoever makes a model a step.

Keras 2 is optional and never imported here: where the target did not import it, no object is of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import keras
import tensorflow as tf

from analyzer.capture import private_names

_KERAS_2 = "tf_keras"


class KerasApi(Protocol):
    """One of the two."""

    @property
    def module(self) -> Any:
        """The package, with ``losses``, ``layers``, ``optimizers`` and ``Model``."""

    def is_compiled(self, model: Any) -> bool:
        """Say whether the model has an optimizer and a loss."""

    def jit(self, model: Any) -> bool:
        """Say whether its step is compiled with XLA."""

    def input_specs(self, model: Any) -> Any:
        """Return the inputs' specs in the structure that the model takes; None where it has none."""

    def output_specs(self, model: Any, inputs: Any) -> Any:
        """Return the outputs as specs in their structure, building the model on the way."""

    def output_tensors(self, model: Any) -> Any:
        """Return the symbolic outputs of a functional model; None for others."""

    def last_layer(self, tensor: Any) -> Any:
        """Return the layer that makes a symbolic output."""

    def body(self, model: Any, *, train: bool) -> Callable[[Any], Any]:
        """Return what ``fit`` or ``predict`` runs for one batch."""

    def loss_method(self, model: Any) -> tuple[Any, str]:
        """Return the object and the method that every use of the compiled loss goes through."""


class Keras3:
    """The package ``keras``, from version 3 on."""

    module: Any = keras

    def is_compiled(self, model: Any) -> bool:
        """Say whether the model has an optimizer and a loss."""
        return bool(model.compiled)

    def jit(self, model: Any) -> bool:
        """Say whether its step is compiled with XLA; Keras decides where nobody did."""
        return bool(model.jit_compile)

    def input_specs(self, model: Any) -> Any:
        """Return the inputs' specs in the structure that the model takes; None where it has none."""
        structure = private_names.get_input_structure(model)
        if structure is None and getattr(model, "inputs", None):
            return model.inputs if len(model.inputs) > 1 else model.inputs[0]
        return structure

    def output_specs(self, model: Any, inputs: Any) -> Any:
        """Return the outputs as specs in their structure; no op is run.

        A layer's own ``compute_output_shape`` may leave axes open that its ``call`` does not: then a
        graph is made of the model, and left.
        """
        specs = model(tf.nest.map_structure(_symbolic, inputs))
        if all(_is_closed(spec.shape) for spec in tf.nest.flatten(specs)):
            return specs
        return _traced_specs(model, inputs)

    def output_tensors(self, model: Any) -> Any:
        """Return the symbolic outputs of a functional model; None for others."""
        structure = private_names.get_output_structure(model)
        return structure if structure is not None else getattr(model, "outputs", None)

    def last_layer(self, tensor: Any) -> Any:
        """Return the layer that makes a symbolic output."""
        return getattr(private_names.get_history(tensor), "operation", None)

    def body(self, model: Any, *, train: bool) -> Callable[[Any], Any]:
        """Return what ``fit`` or ``predict`` runs for one batch."""
        step: Callable[[Any], Any] = model.train_step if train else model.predict_step
        return step

    def loss_method(self, model: Any) -> tuple[Any, str]:
        """Return the object and the method that every use of the compiled loss goes through."""
        return private_names.get_compiled_loss(model), "call"


class Keras2:
    """The package ``tf_keras``, where the target has imported it."""

    @property
    def module(self) -> Any:
        """The package."""
        return sys.modules[_KERAS_2]

    def is_compiled(self, model: Any) -> bool:
        """Say whether the model has an optimizer and a loss."""
        return private_names.keras_2_is_compiled(model)

    def jit(self, model: Any) -> bool:
        """Say whether its step is compiled with XLA: only where its ``compile`` says so."""
        return bool(model.jit_compile)

    def input_specs(self, model: Any) -> Any:
        """Return the inputs' specs in the structure that the model takes; None where it has none."""
        structure = private_names.get_keras_2_inputs(model)
        if structure is None and getattr(model, "inputs", None):
            structure = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        if structure is None:
            return None
        return tf.nest.map_structure(_spec, structure)

    def output_specs(self, model: Any, inputs: Any) -> Any:
        """Return the outputs as specs in their structure; a graph is made of the model, and left."""
        return _traced_specs(model, inputs)

    def output_tensors(self, model: Any) -> Any:
        """Return the symbolic outputs of a functional model; None for others."""
        structure = private_names.get_keras_2_outputs(model)
        return structure if structure is not None else getattr(model, "outputs", None)

    def last_layer(self, tensor: Any) -> Any:
        """Return the layer that makes a symbolic output."""
        return getattr(private_names.get_history(tensor), "layer", None)

    def body(self, model: Any, *, train: bool) -> Callable[[Any], Any]:
        """Return what ``fit`` or ``predict`` runs for one batch: the step, and the count of it."""
        step = model.train_step if train else model.predict_step
        counter = private_names.get_keras_2_counter(model, train=train)

        def run(data: Any) -> Any:
            outputs = step(data)
            counter.assign_add(1)
            return outputs

        return run

    def loss_method(self, model: Any) -> tuple[Any, str]:
        """Return the object and the method that every use of the compiled loss goes through."""
        return getattr(model, "compiled_loss", None), "__call__"


def is_model(thing: Any) -> bool:
    """Say whether a thing is a model of either Keras."""
    return isinstance(thing, _kinds("Model"))


def is_model_class(thing: Any) -> bool:
    """Say whether a thing is a class of such models."""
    return isinstance(thing, type) and issubclass(thing, _kinds("Model"))


def is_layer(thing: Any) -> bool:
    """Say whether a thing is a layer of either Keras."""
    return isinstance(thing, _kinds("layers.Layer"))


def get_api(model: Any) -> KerasApi:
    """Return the Keras that a model is of."""
    return Keras3() if isinstance(model, keras.Model) else Keras2()


def get_layer_classes() -> tuple[type, ...]:
    """Return the base classes of layers."""
    return _kinds("layers.Layer")


def get_metric_classes() -> tuple[type, ...]:
    """Return the base classes of metrics."""
    return _kinds("metrics.Metric")


def get_optimizer_classes() -> tuple[type, ...]:
    """Return the base classes of optimizers; Keras 2 has those of two generations."""
    return (*_kinds("optimizers.Optimizer"), *_kinds("optimizers.legacy.Optimizer", only_2=True))


def get_optimizer_variables(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables, which Keras 2's legacy optimizers have a method for."""
    variables: Iterable[Any] = optimizer.variables
    return list(variables() if callable(variables) else variables)


def set_keras_2_policy(policy: str) -> None:
    """Make a dtype policy that of Keras 2, where one is asked for and the target has imported it."""
    package = sys.modules.get(_KERAS_2)
    if package is not None and policy:
        package.mixed_precision.set_global_policy(policy)


def _kinds(path: str, *, only_2: bool = False) -> tuple[type, ...]:
    """Return the class of a dotted name in each Keras that is imported."""
    packages = [None if only_2 else keras, sys.modules.get(_KERAS_2)]
    found: list[Any] = []
    for package in packages:
        thing = package
        for part in path.split("."):
            thing = getattr(thing, part, None)
        if isinstance(thing, type):
            found.append(thing)
    return tuple(found)


def _is_closed(shape: Any) -> bool:
    """Say whether every axis of a shape, a tuple or a TensorShape, is known."""
    return bool(tf.TensorShape(shape).is_fully_defined())


def _traced_specs(model: Any, inputs: Any) -> Any:
    """Return the outputs as specs in their structure; a graph is made of the model, and left."""
    graph = private_names.FuncGraph("outputs")
    with graph.as_default():
        fed = tf.nest.map_structure(
            lambda tensor: tf.compat.v1.placeholder(tensor.dtype, tensor.shape),
            inputs,
            expand_composites=True,
        )
        outputs = model(fed)
    return tf.nest.map_structure(lambda out: tf.TensorSpec(out.shape, out.dtype), outputs)


def _symbolic(tensor: Any) -> Any:
    """Return the spec of a tensor as Keras' layers take it."""
    return keras.KerasTensor(
        tuple(tensor.shape),
        dtype=tensor.dtype.name,
        sparse=isinstance(tensor, tf.SparseTensor),
        ragged=isinstance(tensor, tf.RaggedTensor),
    )


def _spec(tensor: Any) -> Any:
    """Return an input of Keras 2 as a spec of Keras'."""
    spec = tensor.type_spec
    axes = spec.shape.as_list() if spec.shape.rank is not None else None
    return keras.KerasTensor(
        axes,
        dtype=spec.dtype.name,
        name=str(tensor.name),
        sparse=isinstance(spec, tf.SparseTensorSpec),
        ragged=isinstance(spec, tf.RaggedTensorSpec),
    )
